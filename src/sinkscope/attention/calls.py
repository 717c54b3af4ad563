"""One attention call on its way: taps may watch it, rank by it, or change it; `perform` does what they ask in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sinkscope.attention.attend import attend, choose_backend
from sinkscope.attention.context import GROUPS, Forward
from sinkscope.errors import InterventionError


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

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    @property
    def start(self) -> int:
        """Column of the first query: what is cached stands before it, unless the decoder says otherwise."""
        return self.keys - self.queries if self.forward is None else self.forward.start

    @cached_property
    def real_keys(self) -> Tensor | None:
        """bool [batch, key]: keys that are not padding; None where none is."""
        if self.forward is not None:
            if self.forward.real is not None:
                return self.forward.real[:, : self.keys].to(self.q.device)
            padding = self.forward.padding
            if padding is None:
                return None
            return torch.arange(self.keys, device=self.q.device) >= padding.to(self.q.device).unsqueeze(1)
        if self.mask is None:
            return None
        seen = self.mask if self.mask.dtype == torch.bool else self.mask > torch.finfo(self.mask.dtype).min / 2
        return seen.flatten(1, -2).any(1).expand(self.q.shape[0], -1)

    @cached_property
    def labels(self) -> Tensor:
        """[batch, query]: the group of each query, −1 for padding."""
        if self.forward is not None:
            return self.forward.labels.to(self.q.device)
        labels = torch.zeros(self.q.shape[0], self.queries, dtype=torch.int64, device=self.q.device)
        if self.real_keys is not None and self.queries <= self.keys:
            return labels.masked_fill(~self.real_keys[:, self.start : self.start + self.queries], -1)
        return labels

    @property
    def group_count(self) -> int:
        return 1 if self.forward is None else len(GROUPS)

    @property
    def backend(self) -> str:
        return choose_backend(self.q)


@dataclass(frozen=True)
class Change:
    """What one intervention wants done in a call; several are merged."""

    drop: Tensor | None = None  # bool [batch, head, key]: −∞ before the softmax, for all queries
    keep_self: bool = False  # … but a dropped key may still attend to itself
    hide: Tensor | None = None  # bool [batch | 1, head | 1, query, key]: True = may not attend
    values: Callable[[Tensor], Tensor] | None = None  # [batch, head, key, dim] → the same
    touched: Tensor | None = None  # bool [batch, head, key]: keys whose value is changed


@dataclass(frozen=True)
class Outcome:
    """What a call came to."""

    received: Tensor  # [batch, head, group, key], of the probabilities really used
    clean: Tensor  # the same, without what was dropped
    drop: Tensor | None  # bool [batch, head, key]
    touched: Tensor | None  # bool [batch, head, key]: dropped, or with a changed value
    mask: Tensor | None  # the mask that was really used, what interventions hide included


class Tap:
    """Listens to calls. Subclasses override what they need."""

    def change(self, call: Call) -> list[Change]:
        """What to change in this call; nothing by default."""
        return []

    def ranks(self, call: Call) -> bool:
        """Whether column sums are needed, but not worth another last bit of the output."""
        return False

    def watches(self, call: Call) -> bool:
        """Whether column sums are needed and the output may come from the same pass (equal to rounding)."""
        return False

    def take(self, call: Call, outcome: Outcome) -> None:
        """Called with the column sums if this tap, or another, asked for them."""

    def done(self, call: Call) -> None:
        """Called when the call is over, whether or not column sums were made."""


def perform(call: Call, taps: Sequence[Tap]) -> Tensor:
    """Output of the call, [batch, head, query, dim]; bit-identical to the module's own where nothing is changed or watched."""
    call = _on_canvas(call)
    out = _answer(call, taps)
    for tap in taps:
        tap.done(call)
    return out


def _on_canvas(call: Call) -> Call:
    """The call over all columns of the canvas, those that a sparse cache leaves out hidden: what taps see and change.

    Keys that are not there and keys that nobody may look at are the same to a softmax.
    """
    found = None if call.forward is None or call.forward.kept is None else call.forward.kept(call.layer)
    if found is None:
        return call
    keys, values, seen = found
    mask = seen.repeat_interleave(call.q.shape[1] // keys.shape[1], dim=1)[:, :, None]
    whole = replace(call, k=keys, v=values, mask=None)
    return replace(whole, mask=mask if whole.real_keys is None else mask & whole.real_keys[:, None, None])


def _answer(call: Call, taps: Sequence[Tap]) -> Tensor:
    changes = [change for tap in taps for change in tap.change(call)]
    watched = any(tap.watches(call) for tap in taps)
    if not changes and not watched and not any(tap.ranks(call) for tap in taps):
        return call.untouched()
    drop, mask, values = merged(call, changes)
    keys = call.k if values is call.v else call.k.repeat_interleave(values.shape[1] // call.k.shape[1], dim=1)
    out, received, clean = attend(
        call.q, keys, values, mask=mask, causal=call.causal, groups=call.labels, scale=call.scale, drop_keys=drop,
        clean=True, group_count=call.group_count, keep_self=any(change.keep_self for change in changes),
    )  # fmt: skip
    outcome = Outcome(received, clean, drop, touched(changes), mask)
    for tap in taps:
        tap.take(call, outcome)
    return out if changes or watched else call.untouched()


def merged(call: Call, changes: Sequence[Change]) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Several changes as one: dropped keys, mask, values."""
    if len({change.keep_self for change in changes if change.drop is not None}) > 1:
        raise InterventionError(
            "keep_self must be the same for all interventions that mask keys in one call; choose one."
        )
    if any(change.keep_self for change in changes) and call.start != call.keys - call.queries:
        raise InterventionError(
            "keep_self does not go with a dual cache, whose queries stand in the middle; use another cache."
        )
    drop, mask, values = None, call.mask, call.v
    for change in changes:
        if change.drop is not None:
            drop = change.drop if drop is None else drop | change.drop
        if change.hide is not None:
            mask = _hidden(mask, change.hide)
        if change.values is not None:
            share = call.q.shape[1] // values.shape[1]
            values = change.values(values.repeat_interleave(share, dim=1) if share > 1 else values)
    return drop, mask, values


def touched(changes: Sequence[Change]) -> Tensor | None:
    """All keys that a call's changes hide or empty, bool [batch, head, key]."""
    picked = [tensor for change in changes for tensor in (change.drop, change.touched) if tensor is not None]
    return torch.stack(picked).any(0) if picked else None


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
