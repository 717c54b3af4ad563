"""Make sinks weaker, move them, or hold them still: the softmax, the scores of the top keys, and a key for what is too much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.attention.call import Call, Change, EachCall, Extra
from sinkscope.attention.patch import Shape, module_of, patched
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import Aim, Intervention, Label, show_kinds, top
from sinkscope.interventions.memory import Map, Memory
from sinkscope.interventions.ranked import Ranked
from sinkscope.interventions.selected import OTHERS, SelectorField, SelectorIntervention, select_keys
from sinkscope.validation import FieldError, FromZero, Share, settings

Strength = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]
Temperature = Annotated[float, Field(strict=True, ge=0.01, le=1e6, allow_inf_nan=False)]


@settings(InterventionError)
class SoftmaxOffByOne(Intervention, noop={"weight": 0}):
    """Add a constant to the denominator of every softmax, so that a head may attend to nothing.

    Args:
        weight: Constant that is added; 0 is the plain softmax.
    """

    name: ClassVar[str] = "off_by_one"
    aim: ClassVar[Aim | None] = "weaken"
    always: ClassVar[tuple[str, ...]] = ("weight",)
    weight: Annotated[Strength, Label("{:g}", 11)] = 1.0

    def change(self, call: Call, memory: Memory) -> Change | None:
        heads = call.q.shape[1]
        nothing = call.q.new_zeros(1, heads, 1, call.k.shape[-1]), call.q.new_zeros(1, heads, 1, call.v.shape[-1])
        return Change(extra=Extra(*nothing, bias=math.log(self.weight)))


@settings(InterventionError)
class Soften(Intervention, noop={"temperature": 1}):
    """Divide the scores by a temperature before the softmax.

    Args:
        temperature: Divisor; above 1 attention is spread more evenly, below 1 it is concentrated.
    """

    name: ClassVar[str] = "soften"
    aim: ClassVar[Aim | None] = "weaken"
    temperature: Annotated[Temperature, Label("{:g}", 11)]

    def change(self, call: Call, memory: Memory) -> Change | None:
        return Change(temperature=self.temperature)


@settings(InterventionError)
class AddSinkToken(Intervention, noop={"count": 0}):
    """Add one key that every query attends to: a token at position 0 that attends only to itself.

    Its keys and values come from a forward of the model over this token alone.

    Args:
        token: Token id; the default is the tokenizer's BOS, padding or EOS token.
        count: Number of added keys; 0 changes nothing.
    """

    name: ClassVar[str] = "add_sink_token"
    aim: ClassVar[Aim | None] = "weaken"
    token: Annotated[FromZero, Label("of token {}", 12)] | None = None
    count: Literal[0, 1] = 1

    def prepare(self, model: Any, memory: Memory) -> None:
        token = _sink_token(model) if self.token is None else self.token
        states: dict[int, tuple[Tensor, Tensor]] = {}  # layer → key and value, [1, head, 1, dim]

        def keep(call: Call) -> None:
            states[call.layer] = call.per_head(call.k), call.per_head(call.v)

        with patched(module_of(model), EachCall(keep)):
            model.logits(torch.tensor([[token]]))
        memory.given[id(self)] = states

    def change(self, call: Call, memory: Memory) -> Change | None:
        key, value = memory.given[id(self)][call.layer]
        return Change(extra=Extra(key, value))


def _sink_token(model: Any) -> int:
    if not hasattr(model, "logits"):
        raise InterventionError("A sink token needs a loaded model, whose states of that token can be computed.")
    tokenizer = getattr(model, "tokenizer", None)
    ids = (getattr(tokenizer, "bos_token_id", None), getattr(model, "pad_id", None), getattr(model, "eos_id", None))
    found = next((token for token in ids if token is not None), None)
    if found is None:
        raise InterventionError("The model names no begin, padding or end token to be the sink; give token=….")
    return int(found)


def _raised(picked: Tensor | None, call: Call, gain: float) -> Change | None:
    """`gain` (nats) is added to the scores of the picked keys, which stay in sight."""
    if picked is None:
        return None
    return Change(bias=picked[:, :, None].to(call.q.dtype) * gain, touched=picked)


@settings(InterventionError)
class PenaliseSinks(Ranked, noop={"k": 0, "penalty": 0}):
    """Lower the scores of the most-attended keys before the softmax.

    Settings that the table leaves out are those of `Ranked`.

    Args:
        penalty: Amount in nats that is subtracted, which divides the odds of attending to the key by e^penalty.
    """

    name: ClassVar[str] = "penalise_sinks"
    aim: ClassVar[Aim | None] = "weaken"
    hides: ClassVar[bool] = False
    always: ClassVar[tuple[str, ...]] = ("rank", "rows", "penalty")
    penalty: Annotated[Strength, Label("by {:g}", 11)] = field(default=1.0, kw_only=True)

    def change(self, call: Call, memory: Memory) -> Change | None:
        return _raised(self.select(call, memory), call, -self.penalty)


@settings(InterventionError)
class HoldSinks(Ranked, noop={"k": 0, "bonus": 0}):
    """Raise the scores of the keys that were most attended after the first forward, so that sinks stay where they are.

    Settings that the table leaves out are those of `Ranked`.

    Args:
        bonus: Amount in nats that is added to the scores.
    """

    name: ClassVar[str] = "hold_sinks"
    aim: ClassVar[Aim | None] = "hold"
    hides: ClassVar[bool] = False
    always: ClassVar[tuple[str, ...]] = ("rank", "rows", "bonus")
    bonus: Annotated[Strength, Label("by {:g}", 11)] = field(default=4.0, kw_only=True)

    def change(self, call: Call, memory: Memory) -> Change | None:
        return _raised(self.select(call, memory), call, self.bonus)

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        held: Tensor | None = memory.own.get((id(self), call.layer))
        if held is None:
            held = super().select(call, memory)
            if held is not None:
                memory.own[id(self), call.layer] = held
        return None if held is None else torch.nn.functional.pad(held, (0, call.keys - held.shape[-1]))


@settings(InterventionError)
class RotateSinks(Ranked):
    """Exchange the scores of each most-attended key with those of the nearest other key of the same token category.

    Values stay in place, so the intervention separates the position of a sink from its content. The settings are those
    of `Ranked`.
    """

    name: ClassVar[str] = "rotate_sinks"
    hides: ClassVar[bool] = False

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.select(call, memory)
        if picked is None:
            return None
        order = _swapped(picked, memory.kinds(call), call.real_keys)
        moved = order != torch.arange(call.keys, device=order.device)
        if moved.device.type == "cpu" and not bool(moved.any()):  # a GPU would have to be waited for
            return None
        spread = order.unsqueeze(-1)
        return Change(keys=lambda keys: keys.gather(2, spread.expand(-1, -1, -1, keys.shape[-1])), touched=moved)


def _swapped(picked: Tensor, kinds: Tensor, real: Tensor | None) -> Tensor:
    """[batch, head, key]: which key's scores each key gets; pairs change places, everything else stays."""
    batch, heads, keys = picked.shape
    columns = torch.arange(keys, device=picked.device)
    order = columns.expand(batch, heads, keys).clone()
    same = kinds[:, :, None] == kinds[:, None, :]  # [batch, key, key]
    if real is not None:
        same = same & real[:, None, :]
    distance = (columns[:, None] - columns[None]).abs().to(torch.float32)
    used = picked.clone()
    for _ in range(int(picked.sum(-1).max())):
        waiting = picked & (order == columns)
        sink = top(waiting.float(), 1)  # the first that has no partner yet
        place = sink.to(torch.int8).argmax(-1)  # [batch, head]
        rows = torch.arange(batch, device=picked.device)[:, None]
        cost = distance[place].masked_fill(~same[rows, place] | used, torch.inf)
        partner = cost.argmin(-1)
        fits = sink.any(-1) & torch.isfinite(cost.gather(-1, partner[..., None])[..., 0])
        for a, b in ((place, partner), (partner, place)):
            here = torch.where(fits, a, place)[..., None]
            order = order.scatter(-1, here, torch.where(fits, b, order.gather(-1, place[..., None])[..., 0])[..., None])
        used = used | (torch.zeros_like(used).scatter(-1, partner[..., None], True) & fits[..., None])
        picked = picked & ~sink
    return order


# ---- a part of the attention is left

PLAIN_NAMES = {"sinks": "sink", "others": "other keys", "random": "random keys"}  # of what is attenuated


@settings(InterventionError)
class Attenuate(SelectorIntervention):
    """Reduce the attention that selected keys receive; the other keys of each query take it up in proportion.

    Give either `to` or `by`. `to=0` and `by=1` mask the keys; `to=1` and `by=0` change nothing. A query that can attend
    to no other key is left unchanged. The fraction of all attention that was removed is `effect.mass_share`. The
    intervention holds [query, key] maps of a call, for canvases of at most a few thousand positions.

    Args:
        of: Selector of the keys, such as `MaskSinks(k=1)`.
        to: Fraction of each query's attention (0 to 1) that is left to the selected keys together. A query that gives
            them less is left unchanged.
        by: Fraction (0 to 1) of the attention to the selected keys that every query loses.
        matched: Selectors for a row-matched comparison, with `by`: every query loses `by` times the smallest attention
            that it gives to any of these selections. `Attenuate(of=sink, matched=[sink, others], by=1)` and
            `Attenuate(of=others, matched=[sink, others], by=1)` remove the same attention from every query. If the
            first of them selects no key in a head, that head is left unchanged.
    """

    name: ClassVar[str] = "attenuate"
    choices: ClassVar[tuple[str, ...]] = ("sinks", "random", "positions", "instead", *OTHERS)
    usual: ClassVar[Mapping[str, Any]] = {"k": 1}
    always: ClassVar[tuple[str, ...]] = ("k", "of")
    to: Annotated[Share, Label(lambda share: f"to {100 * share:g}%", 11)] | None = None
    by: Annotated[Share, Label(lambda share: f"by {100 * share:g}%", 11)] | None = None
    matched: Annotated[
        tuple[SelectorField, ...], Label(lambda names: "row-matched with " + "+".join(map(str, names)), 31)
    ] = ()

    def __post_init__(self) -> None:
        if (self.to is None) == (self.by is None):
            raise FieldError(f"or by must be given, one of them, got to={self.to!r} and by={self.by!r}", "to")
        if self.matched and self.by is None:
            raise FieldError("needs by, such as by: 1 for the whole", "matched")

    @classmethod
    def from_entry(cls, words: Mapping[str, Any]) -> Self:
        """Build the intervention from an entry of a study file, in which `matched` names selectors as `of` does.

        Args:
            words: Settings of the entry.
        """
        names, rest = words.get("matched") or (), {name: value for name, value in words.items() if name != "matched"}
        listed = isinstance(names, list | tuple) and all(name in cls.choices for name in names)
        if not listed or len(names) == 1:
            raise FieldError(f"must be a list of two or more of {', '.join(cls.choices)}", "matched")
        if "positions" in words and not {words.get("of"), *names} & {"positions", "instead"}:
            raise FieldError("must be given with of: positions or of: instead, and only with them", "positions")
        flat = {name: value for name, value in rest.items() if name not in ("to", "by", "of", "steps")}
        selectors = [select_keys(name, {**cls.usual, **flat}) for name in names]
        return super().from_entry({**rest, "matched": selectors} if names else rest)

    def to_entry(self) -> dict[str, Any]:
        entry = super().to_entry()
        names = [self._word(one, self._flat(self.of)) for one in self.matched]
        return {**entry, "matched": names} if names and None not in names else entry

    @classmethod
    def short_name(cls, words: Mapping[str, Any], causal: bool) -> str | None:
        if words.get("matched") and words.get("k") == 1 and set(words) <= {"k", "by", "of", "matched", "above", "per"}:
            keys = PLAIN_NAMES.get(words["of"]) or show_kinds(words["of"], several=True)
            return f"{keys}, row-matched" if words.get("by") == 1 else f"{keys}, row-matched by {100 * words['by']:g}%"
        return None

    @property
    def is_noop(self) -> bool:
        nothing = bool(self.matched) and self.matched[0].is_noop
        return self.of.is_noop or nothing or self.to == 1 or self.by == 0

    def check(self, shape: Shape) -> None:
        for one in (self.of, *self.matched):
            one.check(shape)

    def maps(self) -> set[Map]:
        return {one for selector in (self.of, *self.matched) for one in selector.maps()}

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        others = [picked if one == self.of else one.select(call, memory) for one in self.matched]
        if picked is None or any(one is None for one in others):
            return None
        scores = call.scores()  # [batch, head, query, key]
        on = picked[:, :, None]
        inside, odds = _odds(scores, on)
        share = odds.sigmoid()
        kept = share.clamp(max=self.to) if self.to is not None else share * (1 - (self.by or 0.0))
        if others:
            shares = [_odds(scores, one[:, :, None])[1].sigmoid() for one in others if one is not None]
            least = torch.stack([part.nan_to_num(0.0) for part in shares]).amin(0)
            kept = (share - (self.by or 0.0) * least).clamp(min=0.0)
        lowered = (kept < share) & odds.isfinite()  # no key of the two kinds: nothing to lower, or nobody to take it up
        if lowered.device.type == "cpu" and not bool(lowered.any()):  # a GPU would have to be waited for
            return None
        gain = torch.where(lowered, kept.logit() - odds, 0.0)
        bias = torch.where(on, gain[..., None], 0.0)
        removed = (scores - inside[..., None]).exp() * (share - kept).masked_fill(~lowered, 0.0)[..., None]
        counted = (call.labels >= 0)[:, None, :, None]
        return Change(bias=bias, removed=(removed.nan_to_num(0.0) * (on & counted)).sum(2))


def _odds(scores: Tensor, on: Tensor) -> tuple[Tensor, Tensor]:
    """[batch, head, query]: logsumexp of the picked keys' scores, and their log odds against all other keys."""
    inside = scores.masked_fill(~on, -torch.inf).logsumexp(-1)
    return inside, inside - scores.masked_fill(on, -torch.inf).logsumexp(-1)
