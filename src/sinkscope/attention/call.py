"""One attention call on its way: taps may watch it, rank by it, or change it; `run_call` does what they ask in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sinkscope.attention.attend import attend, choose_backend, run_backend
from sinkscope.attention.forward import GROUPS, Forward, SparseKeys, count_seen
from sinkscope.attention.maps import Editors, ExplicitMaps, compute_maps, edit_map, with_value_of
from sinkscope.attention.reference import Inputs, as_bias, masked_below, masked_scores, one_hot
from sinkscope.errors import InterventionError


class BuiltIn(NamedTuple):
    """A key and a value that a model learned for each head, in front of all others: a sink that it was given."""

    key: Tensor  # [1, head, 1, dim]
    value: Tensor  # [1, head, 1, value dim]


@dataclass(frozen=True)
class Call:
    """What a module asked attention for."""

    layer: int
    q: Tensor  # [batch, head, query, dim], after the rotary embedding
    k: Tensor  # [batch, kv head, key, dim]
    v: Tensor
    mask: Tensor | None  # [batch | 1, head | 1, query, key]
    causal: bool
    scale: float | None
    forward: Forward | None  # None: not a forward of our decoders
    untouched: Callable[[], Tensor]  # the module's own attention, [batch, head, query, dim]
    directed: bool  # the module is causal, whether or not this call needs a mask for it
    cap: float | None = None  # scores are bent to stay within it
    built_in: BuiltIn | None = None  # the module's own key that stands on no position

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    @property
    def rows(self) -> int:
        """Rows of the batch that count; with guidance the second half is the unconditional copy."""
        return self.q.shape[0] if self.forward is None else self.forward.rows

    @property
    def scaling(self) -> float:
        """What scores are multiplied by."""
        return float(self.q.shape[-1] ** -0.5) if self.scale is None else self.scale

    @property
    def start(self) -> int:
        """Column of the first query: what is cached stands before it, unless the decoder says otherwise."""
        return self.keys - self.queries if self.forward is None else self.forward.start

    @cached_property
    def real_keys(self) -> Tensor | None:
        """bool [batch, key]: keys that are not padding; None where none is."""
        if self.forward is not None:
            return self.forward.real_keys(self.keys, self.q.device)
        return None if self.visible is None else self.visible.flatten(1, -2).any(1).expand(self.q.shape[0], -1)

    @property
    def visible(self) -> Tensor | None:
        """The mask as bool: which keys each query may look at, before any causal order."""
        if self.mask is None or self.mask.dtype == torch.bool:
            return self.mask
        return self.mask > masked_below(self.mask.dtype)

    @cached_property
    def labels(self) -> Tensor:
        """[batch, query]: the group of each query, −1 for padding."""
        if self.forward is not None:
            given, device = self.forward.labels, self.q.device
            return given if given.device == device else self.forward.once("labels", device, lambda: given.to(device))
        labels = torch.zeros(self.q.shape[0], self.queries, dtype=torch.int64, device=self.q.device)
        if self.real_keys is not None and self.queries <= self.keys:
            return labels.masked_fill(~self.real_keys[:, self.start : self.start + self.queries], -1)
        return labels

    @property
    def seen(self) -> Tensor:
        """[batch, group, key]: how many queries that count may look at each key, before anything is changed."""
        if self.forward is not None and self.forward.kept is None:
            return self.forward.seen(self.keys, self.q.device)
        visible = None if self.visible is None else self.visible.any(1)
        return count_seen(self.labels, self.group_count, self.keys, visible, self.causal)

    def once(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """What does not differ from layer to layer of one forward, made once on each device."""
        if self.forward is None:
            return make()
        return self.forward.once((key, self.keys, self.queries), self.q.device, make)

    def per_head(self, tensor: Tensor) -> Tensor:
        """[batch, kv head or head, …] → [batch, head, …]."""
        share = self.q.shape[1] // tensor.shape[1]
        return tensor.repeat_interleave(share, dim=1) if share > 1 else tensor

    def inputs(self, drop_keys: Tensor | None = None) -> Inputs:
        """The call as the formula takes it, for explicit maps; they are held whole, so for few heads."""
        causal, offset, hot = 1 if self.causal else None, self.keys - self.queries, None
        if self.forward is not None:
            hot = self.forward.once("one hot", self.q.device, lambda: one_hot(self.labels, len(GROUPS), torch.float32))
        return Inputs(
            self.q, self.k, self.v, self.mask, causal, offset, self.scaling, self.labels, self.group_count, drop_keys,
            False, False, self.cap, hot,
        )  # fmt: skip

    def scores(self) -> Tensor:
        """What goes into the softmax, −∞ where a query may not look, [batch, head, query, key]."""
        return masked_scores(self.inputs())

    @property
    def group_count(self) -> int:
        return 1 if self.forward is None else len(GROUPS)

    @property
    def backend(self) -> str:
        return choose_backend(self.q, capped=self.cap is not None)


class Extra(NamedTuple):
    """Keys that every query sees and that stand on no position."""

    keys: Tensor  # [batch | 1, head, n, dim]
    values: Tensor  # [batch | 1, head, n, value dim]
    bias: float = 0.0  # added to their scores


@dataclass(frozen=True)
class Change:
    """What one intervention wants done in a call; several are merged."""

    drop: Tensor | None = None  # bool [batch, head, key]: −∞ before the softmax, for all queries
    keep_self: bool = False  # … but a dropped key may still attend to itself
    hide: Tensor | None = None  # bool [batch | 1, head | 1, query, key]: True = may not attend
    values: Callable[[Tensor], Tensor] | None = None  # [batch, head, key, dim] → the same
    touched: Tensor | None = None  # bool [batch, head, key]: keys whose value is changed
    keys: Callable[[Tensor], Tensor] | None = None  # [batch, head, key, dim] → the same
    extra: tuple[Tensor, Tensor] | Extra | None = None  # keys and values that every query sees beside the text
    bias: Tensor | None = None  # [batch | 1, head | 1, query | 1, key], added to the scores
    temperature: float = 1.0  # scores are divided by it
    hide_built_in: bool = False  # nobody may attend to the module's own key
    removed: Tensor | None = None  # [batch, head, key]: attention that each key loses, where `bias` takes a part of it


@dataclass(frozen=True)
class CallResult:
    """What a call came to."""

    received: Tensor  # [batch, head, group, key], of the probabilities really used
    clean: Tensor  # the same, without what was dropped; where scores were changed and something is ranked, untouched
    drop: Tensor | None  # bool [batch, head, key]
    touched: Tensor | None  # bool [batch, head, key]: dropped, or with a changed value
    mask: Tensor | None  # the mask that was really used, what interventions hide included
    built_in: Tensor | None = None  # [batch, head, group], what the module's own key received; None: it has none
    needs_gradient: bool = False  # whether who takes `received` may want a gradient through it, which it need not have

    @cached_property
    def received_by_all(self) -> Tensor:
        """[batch, head, key]: from all groups of queries."""
        return self.received.sum(2)

    @cached_property
    def clean_by_all(self) -> Tensor:
        return self.received_by_all if self.clean is self.received else self.clean.sum(2)


NO_EDITORS: Mapping[str, Any] = {}


class Tap:
    """Listens to calls; subclasses override what they need."""

    def change(self, call: Call) -> list[Change]:
        """What to change in this call; nothing by default."""
        return []

    def needs_sums(self, call: Call) -> bool:
        """Whether column sums are needed, but not worth another last bit of the output."""
        return False

    def needs_sums_fused(self, call: Call) -> bool:
        """Whether column sums are needed and the output may come from the same pass (equal to rounding)."""
        return False

    def map_editors(self, call: Call) -> Editors:
        """Functions that read or replace this call's scores, pattern or head_out, by place; none by default."""
        return NO_EDITORS

    def take(self, call: Call, result: CallResult) -> None:
        """Called with the column sums if this tap, or another, asked for them."""

    def done(self, call: Call) -> None:
        """Called when the call is over, whether or not column sums were made."""


@dataclass
class EachCall(Tap):
    """Hands every call that is over to a function."""

    function: Callable[[Call], None]

    def done(self, call: Call) -> None:
        self.function(call)


def run_call(call: Call, taps: Sequence[Tap]) -> Tensor:
    """Output of the call, [batch, head, query, dim]; bit-identical to the module's own where nothing is changed or watched."""
    kept = None if call.forward is None or call.forward.kept is None else call.forward.kept(call.layer)
    call = _on_columns(call) if kept is None else call
    small, call = call, call if kept is None else _on_canvas(call, kept)
    changes = [change for tap in taps for change in tap.change(call)]
    editors = [functions for tap in taps if (functions := tap.map_editors(call))]
    maps = _explicit_maps(call, changes, editors) if any(_reads_maps(one) for one in editors) else None
    is_edited = maps is not None and maps.is_edited
    moved = bool(changes) or is_edited
    watched = any(tap.needs_sums_fused(call) for tap in taps)
    out: Tensor | None = None
    if moved or watched or any(tap.needs_sums(call) for tap in taps):
        # Where a gradient flows, the output's flows through the module's own attention, the sums' through the formula.
        gradient = needs_gradient(call)
        watched = watched and not gradient
        with torch.no_grad() if torch.is_grad_enabled() and not moved else nullcontext():
            out = _summed(call, small, kept, taps, changes, maps if is_edited else None, gradient)
    if out is None or not (moved or watched):
        out = call.untouched()
        if maps is not None and maps.out.requires_grad:
            out = with_value_of(out, maps.out)
    out, _ = edit_map(out, "head_out", editors)
    for tap in taps:
        tap.done(call)
    return out


def needs_gradient(call: Call) -> bool:
    """Whether what is computed from this call has a gradient."""
    return torch.is_grad_enabled() and any(one.requires_grad for one in (call.q, call.k, call.v))


def _reads_maps(editors: Editors) -> bool:
    """Whether any of these functions is for a map, which must be computed for it; head_out is there anyway."""
    return "scores" in editors or "pattern" in editors


def _explicit_maps(call: Call, changes: Sequence[Change], editors: Sequence[Editors]) -> ExplicitMaps:
    """The call under all changes, by the formula, with what functions make of its maps."""
    use, drop, extra = merge_changes(call, [*changes, *_own_key(call, changes)])
    keep_self = any(change.keep_self for change in changes)
    offset = use.keys - use.queries if call.causal else call.start + extra
    inputs = replace(use.inputs(drop), labels=call.labels, offset=offset, keep_self=keep_self)
    return compute_maps(inputs, editors, extra)


def _on_columns(call: Call) -> Call:
    """Keys that a sliding window has dropped put back, hidden from all: key i then stands in column i."""
    missing = 0 if call.forward is None else call.forward.start + call.queries - call.keys
    if missing <= 0:
        return call
    mask = torch.ones(1, 1, 1, call.keys, dtype=torch.bool, device=call.q.device) if call.mask is None else call.mask
    mask = functional.pad(mask, (missing, 0), value=False if mask.dtype == torch.bool else -torch.inf)
    k, v = (functional.pad(part, (0, 0, missing, 0)) for part in (call.k, call.v))
    return replace(call, k=k, v=v, mask=mask)


def _on_canvas(call: Call, kept: SparseKeys) -> Call:
    """The call over all columns of the canvas, those that a sparse cache leaves out hidden: what taps see and change.

    Keys that are not there and keys that nobody may look at are the same to a softmax.
    """
    mask = kept.seen.repeat_interleave(call.q.shape[1] // kept.keys.shape[1], dim=1)[:, :, None]
    whole = replace(call, k=kept.keys, v=kept.values, mask=None)
    return replace(whole, mask=mask if whole.real_keys is None else mask & whole.real_keys[:, None, None])


def _summed(
    call: Call,
    small: Call,
    kept: SparseKeys | None,
    taps: Sequence[Tap],
    changes: Sequence[Change],
    maps: ExplicitMaps | None,
    gradient: bool,
) -> Tensor:
    """Output and column sums in one pass; the sums go to the taps.

    small: the call as the module made it, which has fewer keys than `call` under a sparse cache. maps: edited ones, which
    are what the output is made of. gradient: whether one flows through this call.
    """
    narrow = kept is not None and not changes and maps is None  # nothing to change among the keys that are left out
    use, drop, extra = merge_changes(small if narrow else call, [*changes, *_own_key(call, changes)])
    if maps is None:
        keep_self = any(change.keep_self for change in changes)
        if keep_self and call.forward is not None and call.forward.columns is not None:
            raise InterventionError(
                "keep_self needs queries side by side, and this cache computes single columns; drop one."
            )
        words = {} if drop is None else {"drop_keys": drop, "clean": True, "keep_self": keep_self}
        found = _attend(call, use, extra, **words)
        out, received, clean = found[0], found[1], found[-1]
    else:
        out, received, clean = maps.out, maps.received, maps.received
    if narrow and kept is not None:
        received = clean = _spread(received, kept.columns, call.keys)
    mask = call.mask if narrow else use.mask
    built_in = received[..., 0] if _own_key(call, changes) else None
    if extra:  # what extra keys received is nobody's column
        own, same = slice(extra, None), clean is received
        drop, mask = (None if one is None else one[..., own] for one in (drop, mask))
        received = received[..., own]
        clean = received if same else clean[..., own]
    scores_moved = maps is not None or any(map(_moves_scores, changes))
    if scores_moved and any(tap.needs_sums(call) for tap in taps):
        clean = untouched_columns(call)
    picked = [tensor for change in changes for tensor in (change.drop, change.touched) if tensor is not None]
    touched = reduce(torch.logical_or, picked) if picked else None
    result = CallResult(received, clean, drop, touched, mask, built_in, gradient)
    for tap in taps:
        tap.take(call, result)
    return out


def _moves_scores(change: Change) -> bool:
    """Whether scores are other than the module's own: a key that was ranked by them would lose its rank by being changed."""
    return change.keys is not None or change.bias is not None or change.extra is not None or change.temperature != 1


def _own_key(call: Call, changes: Sequence[Change]) -> list[Change]:
    """The module's own key as the last of the extra keys, which puts it in front; none where it is hidden."""
    if call.built_in is None or any(change.hide_built_in for change in changes):
        return []
    return [Change(extra=Extra(*call.built_in))]


def untouched_columns(call: Call) -> Tensor:
    """What every key would receive if nothing were changed, [batch, head, group, key]."""
    return untouched_sums(call)[..., len(_own_key(call, [])) :]


def untouched_sums(call: Call) -> Tensor:
    """The same with the module's own key as the first, where it has one."""
    use, _, extra = merge_changes(call, _own_key(call, []))
    return _attend(call, use, extra)[1]


def _attend(call: Call, use: Call, extra: int = 0, **words: Any) -> tuple[Tensor, ...]:
    """use: the same call with other keys, values, mask and scale, which are checked; what our decoders made fits together."""
    as_made = use is call and not words and call.forward is not None and not torch.is_grad_enabled()
    if as_made and (call.mask is None or call.mask.dtype == torch.bool):
        result = run_backend(call.backend, call.inputs())
        return result.out, result.received
    return attend(
        call.q, use.k, use.v, mask=use.mask, causal=call.causal, groups=call.labels, scale=use.scale,
        group_count=call.group_count, first=None if call.causal else call.start + extra, cap=call.cap, **words,
    )  # fmt: skip


def _spread(sums: Tensor, index: Tensor, columns: int) -> Tensor:
    """Column sums [batch, head, group, kept] put where their keys stand on the canvas, [batch, head, group, column]."""
    places = index.repeat_interleave(sums.shape[1] // index.shape[1], dim=1)[:, :, None].expand_as(sums)
    return sums.new_zeros(*sums.shape[:3], columns).scatter_(3, places, sums)


def merge_changes(call: Call, changes: Sequence[Change]) -> tuple[Call, Tensor | None, int]:
    """The call under all changes, in their order; dropped keys, bool [batch, head, extra + key]; how many keys are extra."""
    if len({change.keep_self for change in changes if change.drop is not None}) > 1:
        raise InterventionError(
            "keep_self must be the same for all interventions that mask keys in one call; choose one."
        )
    drop, mask, keys, values, scale = None, call.mask, call.k, call.v, call.scale
    for change in changes:
        if change.drop is not None:
            drop = change.drop if drop is None else drop | change.drop
        if change.hide is not None:
            mask = _hidden(mask, change.hide)
        if change.values is not None:
            values = change.values(call.per_head(values))
        if change.keys is not None:
            keys = change.keys(call.per_head(keys))
        if change.bias is not None:
            mask = change.bias if mask is None else _additive(mask, change.bias) + change.bias
        if change.temperature != 1:
            scale = (call.scaling if scale is None else scale) / change.temperature
    extras, count = [Extra(*change.extra) for change in changes if change.extra is not None], 0
    if values.shape[1] != keys.shape[1] or extras:
        keys, values = call.per_head(keys), call.per_head(values)
    for extra in extras:  # in front of the others, so that a causal call stays aligned at its lower right
        more = extra.keys.shape[2]
        if extra.bias:
            mask = call.q.new_zeros(1, 1, 1, keys.shape[2]) if mask is None else _additive(mask, call.q)
        if mask is not None:
            mask = functional.pad(mask, (more, 0), value=True if mask.dtype == torch.bool else extra.bias)
        drop = None if drop is None else functional.pad(drop, (more, 0))
        keys, values = (
            torch.cat([new.to(old).expand(len(old), -1, -1, -1), old], 2)
            for new, old in ((extra.keys, keys), (extra.values, values))
        )
        count += more
    is_same = keys is call.k and values is call.v and mask is call.mask and scale == call.scale
    return call if is_same else replace(call, k=keys, v=values, mask=mask, scale=scale), drop, count


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    return as_bias(mask, like.dtype) if mask.dtype == torch.bool else mask


def aligned(mask: Tensor | None, causal: bool, query: Tensor, key: Tensor) -> tuple[Tensor | None, bool]:
    """SDPA's causal flag is aligned at the upper left, `attend`'s at the lower right; they differ unless square."""
    if causal and query.shape[2] != key.shape[2]:
        shape = (query.shape[2], key.shape[2])
        return torch.ones(shape, dtype=torch.bool, device=query.device).tril()[None, None], False
    return mask, causal


def _hidden(mask: Tensor | None, hide: Tensor) -> Tensor:
    if mask is None:
        return ~hide
    return mask & ~hide if mask.dtype == torch.bool else mask.masked_fill(hide, -torch.inf)
