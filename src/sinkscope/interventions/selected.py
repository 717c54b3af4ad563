"""Interventions on the keys that another one would hide.

What they carry is taken away or moved, others are hidden instead, or they keep a part of the attention that they draw.
A key whose value is taken away keeps its attention: does a sink store anything?
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.attention.capture import Shape
from sinkscope.errors import InterventionError
from sinkscope.fields import Allowed, among, number
from sinkscope.interventions.base import Intervention, Selector
from sinkscope.interventions.memory import Map, Memory
from sinkscope.interventions.positions import POSITIONS, MaskPositions
from sinkscope.interventions.ranked import Among, Kinds, MaskRandom, MaskSinks, keys_of_kinds, prompt_keys
from sinkscope.interventions.settings import (
    AMONG,
    DRAWN,
    MATCH,
    OF,
    PERSIST,
    RANK,
    ROWS,
    WHICH,
    K,
    Setting,
    of_random,
    register,
)  # fmt: skip

# Classes of keys that a study file names by `of`: all but the sinks, or those of them that are of a kind.
OTHERS: dict[str, Literal["structural", "content"] | None] = {
    "others": None, "structural": "structural", "content": "content"
}  # fmt: skip


def selector(values: dict[str, Any], seed: int) -> Selector:
    """The keys that settings of a study file name by `of`: sinks, as many random ones, positions, or these instead of sinks."""
    words = {name: value for name, value in values.items() if name not in ("of", "positions")}
    of = values.get("of", "sinks")
    if of == "random":
        return MaskRandom(seed=seed, **words)
    if of == "positions":
        return MaskPositions(values.get("positions", ()))
    drawn = {one.name for one in (*DRAWN, MATCH)}
    sinks = MaskSinks(**{name: value for name, value in words.items() if name not in drawn})
    if of in OTHERS:
        return MaskOthers(sinks, kinds=OTHERS[of])
    return MaskInstead(sinks, values.get("positions", ())) if of == "instead" else sinks


@dataclass(frozen=True)
class SelectorIntervention(Intervention):
    """of: MaskSinks, MaskRandom, MaskPositions or CutContext: whose keys, not whether they are hidden."""

    of: Selector

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.of, Selector):
            raise InterventionError(
                f"Expected of=MaskSinks(…) or another intervention that picks keys, got {self.of!r}."
            )
        if self.of.steps is not None:
            raise InterventionError(
                f"Expected steps={self.of.steps} on {type(self).__name__}, where it has an effect, got it on its selector."
            )

    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        """Settings that are fields of its own stay its own; the others say which keys."""
        own = {one.name: values[one.name] for one in fields(cls) if one.name in values and one.name != "of"}
        return cls(of=selector({name: value for name, value in values.items() if name not in own}, seed), **own)

    @property
    def is_noop(self) -> bool:
        return self.of.is_noop

    def check(self, shape: Shape) -> None:
        self.of.check(shape)

    def maps(self) -> set[Map]:
        return self.of.maps()


class _ChangedValues(SelectorIntervention):
    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        if picked is None:
            return None
        return Change(values=lambda values: self.replaced(values, picked, call.real_keys), touched=picked)

    @abstractmethod
    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        """values [batch, head, key, dim], picked bool [batch, head, key] → values."""


@register("zero_values", K, RANK, ROWS, OF, *WHICH, controls=of_random)
class ZeroValues(_ChangedValues):
    """The picked keys carry nothing: their value is 0."""

    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        return values.masked_fill(picked.unsqueeze(-1), 0.0)


@register("mean_values", K, RANK, ROWS, OF, *WHICH, controls=of_random)
class MeanValues(_ChangedValues):
    """The picked keys carry the mean value of all real keys of their head."""

    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        if real is None:
            mean = values.mean(2, keepdim=True)
        else:
            weights = real[:, None, :, None].to(values.dtype)
            mean = (values * weights).sum(2, keepdim=True) / weights.sum(2, keepdim=True)
        return values.where(~picked.unsqueeze(-1), mean)


@register("mask_instead", K, POSITIONS, RANK, ROWS, *WHICH)
@dataclass(frozen=True)
class MaskInstead(SelectorIntervention, Selector):
    """Hide the keys at `positions` in the heads and forwards in which `of` picks a key, and not the key that it picks.

    A sink is one token, the same at every step and in many heads; so is this control: another token of the chat template,
    say, in the same heads. A head whose sink stands at one of the positions is left as it is there.
    """

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if MaskPositions(self.positions).is_noop:
            raise InterventionError("Expected at least one position to hide instead, got none.")

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        picked = self.of.select(call, memory)
        there = MaskPositions(self.positions).select(call, memory)
        if picked is None or there is None:
            return None
        return there & picked.any(-1, keepdim=True) & ~picked


def _others_name(given: Mapping[str, Any], causal: bool) -> str | None:
    """all structural keys but the sink; of a sink by a rule, or of one sink for all heads."""
    if set(given) - {"k", "kinds", "among", "scope", "persist", "above", "per"} or given.get("k") != 1:
        return None
    kinds = given.get("kinds", "")
    words = f"all {kinds if isinstance(kinds, str) else '+'.join(kinds)}".strip()
    where = "prompt keys" if given.get("among") == "prompt" else "keys"
    heads = "all heads" if given.get("scope") == "all" else "the sink's heads"
    return f"{words} {where} but the sink, in {heads}"


@register(
    "mask_others", K, RANK, ROWS, *WHICH, AMONG, PERSIST,
    Setting("scope", "same", place=63, quiet=True, label="in {} heads".format), short=_others_name,
)  # fmt: skip
@dataclass(frozen=True)
class MaskOthers(SelectorIntervention, Selector):
    """Hide all keys but those that `of` picks: the control in which the sink alone stays.

    kinds: only keys of these kinds of token (as in MaskSinks). among: "prompt" hides keys of the prompt only.
    scope: "same" acts in the heads in which `of` picks a key, "all" in every head, where what `of` picks is spared.
    persist: the keys that `of` picked first are spared at every later step too.
    """

    kinds: Kinds | None = None
    among: Among = "all"
    scope: Literal["same", "all"] = "same"
    persist: bool = False

    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        """In a study file `kinds` and `among` say what is hidden; all other settings say which sinks are spared."""
        own = {name: values[name] for name in ("kinds", "among", "scope", "persist") if name in values}
        return cls(selector({name: value for name, value in values.items() if name not in own}, seed), **own)

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        spared = self.of.select(call, memory)
        if spared is None:
            return None
        if self.persist:
            first: Tensor = memory.own.setdefault((self, call.layer), spared)
            spared = spared | torch.nn.functional.pad(first, (0, call.keys - first.shape[-1]))
        picked = ~spared
        if call.real_keys is not None:
            picked = picked & call.real_keys[:, None]
        if self.kinds is not None:
            picked = picked & keys_of_kinds(self.kinds, call, memory)[:, None]
        if self.among == "prompt":
            picked = picked & prompt_keys(call)
        return picked & spared.any(-1, keepdim=True) if self.scope == "same" else picked


SELECTORS = Allowed(
    "a list of interventions that pick keys, such as [MaskSinks(k=1), MaskOthers(MaskSinks(k=1))]",
    lambda value: isinstance(value, list | tuple) and all(isinstance(one, Selector) for one in value),
)
Share = Annotated[float, Allowed("a share from 0 to 1", number(0, 1))]
TO = Setting("to", None, place=11, quiet=True, label=lambda share: f"to {100 * share:g}%")
BY = Setting("by", None, place=11, quiet=True, label=lambda share: f"by {100 * share:g}%")
SELECTIONS = ("sinks", "random", "positions", "instead", *OTHERS)


def _is_matched(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return not value or (len(value) > 1 and all(name in SELECTIONS for name in value))


OFS = replace(OF, check=among(SELECTIONS), expected="")
MATCHED = Setting(
    "matched", (), Allowed(f"a list of two or more of {', '.join(SELECTIONS)}", _is_matched), place=31,
    quiet=True, sweeps=False, label=lambda names: "row-matched with " + "+".join(names),
)  # fmt: skip


AT = replace(POSITIONS, default=None, quiet=True, label=lambda positions: "at " + POSITIONS.label(positions))


@register(
    "attenuate", replace(K, default=1), TO, BY, OFS, MATCHED, AT, replace(MATCH, quiet=True), replace(RANK, quiet=True),
    replace(ROWS, quiet=True), *WHICH, *DRAWN, masks=False,
)  # fmt: skip
@dataclass(frozen=True)
class Attenuate(SelectorIntervention):
    """Lower the attention on the keys that `of` picks; every row sums to 1 again.

    to: the share of each row that is left to those keys together, 0 to 1. A row that gives them more gives them exactly
    `to`, divided among them as before. A row that gives them less stays as it is.
    by: in place of `to`, the share of what they receive that is removed in every row. Strong and weak rows lose alike.
    matched: selectors, with `by`: every row loses d = by · (the least that any of them receives in that row) from the keys of
    `of`. Where the first of them picks no key in a head, that head stays as it is. So Attenuate(of=sink, matched=[sink,
    others], by=1) and Attenuate(of=others, matched=[sink, others], by=1) remove the same attention from every row. Where
    `of` is none of them, a row loses at most what it gives to the keys of `of`.
    The other keys of the row take up what is left over, in proportion to what they have.
    to=0 and by=1 hide the keys; to=1 and by=0 change nothing. A row that sees no other key stays as it is.
    The attention that was really removed, as a share of all, is `effect.mass_share`.
    It holds [query, key] maps of a call: made for canvases of some thousand positions at most.
    """

    to: Share | None = None
    by: Share | None = None
    matched: Annotated[tuple[Selector, ...], SELECTORS] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.to is None) == (self.by is None):
            raise InterventionError(f"Expected to=… or by=…, got to={self.to!r} and by={self.by!r}; give one of them.")
        if self.matched and self.by is None:
            raise InterventionError(f"Expected by=… with matched=[…], got to={self.to!r}; give by=1.0 for the whole.")
        for one in self.matched:
            if one.steps is not None:
                raise InterventionError(
                    f"Expected steps={one.steps} on Attenuate, where it has an effect, got it on a selector of matched."
                )

    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        words = {name: value for name, value in values.items() if name not in ("to", "by", "matched")}
        matched = tuple(selector({**words, "of": of}, seed) for of in values.get("matched", ()))
        return cls(selector(words, seed), to=values.get("to"), by=values.get("by"), matched=matched)

    @staticmethod
    def contradiction(values: dict[str, Any]) -> tuple[str, str] | None:
        of = {values.get("of"), *values.get("matched", ())}
        if (values.get("positions") is not None) != bool(of & {"positions", "instead"}):
            return "positions", "must be given with of: positions or of: instead, and only with them"
        for one in (*DRAWN, MATCH):
            if values.get(one.name, one.default) != one.default and "random" not in of:
                return one.name, "has an effect with of: random only"
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


# ---- moved: values or keys of one sink take the place of another's ----

PatchSource = Literal["next", "previous", "first"]
SOURCE = Setting(
    "source", "next", among(get_args(PatchSource)), "next, previous or first", place=35, label="from {}".format
)
PATCH_WORDS = (K, RANK, ROWS, replace(OF, quiet=True), SOURCE, *WHICH)


@dataclass(frozen=True)
class _Patched(SelectorIntervention):
    """In study files `of: random` moves as many random keys instead: the control."""

    _part: ClassVar[Literal["values", "keys"]]  # what is moved
    source: PatchSource = "next"

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        own = call.per_head(call.v if self._part == "values" else call.k)  # [batch, head, key, dim]: what is moved
        if self.source == "next":
            states, there = own.roll(-1, 0), None if picked is None else picked.roll(-1, 0)
        else:
            before: Tensor | None = memory.own.get((id(self), call.layer))
            if before is None or self.source == "previous":
                memory.own[id(self), call.layer] = own
            missing = -1 if before is None else call.keys - before.shape[2]
            if before is None or picked is None or missing < 0:
                return None
            states = torch.nn.functional.pad(before, (0, 0, 0, missing))
            there = picked & (torch.arange(call.keys, device=own.device) < before.shape[2])
        if picked is None or there is None:
            return None
        moved, touched = _moved(own, picked, states, there)
        if torch.equal(moved, own):  # its own values: nothing is changed, to the last bit
            return None
        part: dict[str, Any] = {self._part: lambda states: moved}
        return Change(touched=touched, **part)


@register("patch_values", *PATCH_WORDS, controls=of_random)
class PatchValues(_Patched):
    """The picked keys carry the values of the source's picked keys; what they draw stays as it is.

    of: an intervention that picks keys, here and in the source. source: another row of the batch at the same step ("next":
    row i takes from row i + 1, the last from the first), or the same row one forward earlier ("previous") or at its first
    forward ("first").
    """

    _part = "values"


@register("patch_keys", *PATCH_WORDS, controls=of_random)
class PatchKeys(_Patched):
    """The picked keys are looked for as the source's picked keys are; what they carry stays as it is.

    Keys are moved behind the rotary embedding, so that a key brings the position along from which it comes. of,
    source: as in PatchValues.
    """

    _part = "keys"


def _moved(own: Tensor, picked: Tensor, states: Tensor, donors: Tensor) -> tuple[Tensor, Tensor]:
    """The n-th picked key of a head takes from the n-th of the source; heads in which either has fewer keep the rest."""
    most = int(picked.sum(-1).max())
    order, valid = _places(picked, most)
    source, there = _places(donors, most)
    valid = valid & there
    taken = states.gather(2, source.unsqueeze(-1).expand(-1, -1, -1, own.shape[-1]))
    kept = own.gather(2, order.unsqueeze(-1).expand_as(taken))
    moved = own.scatter(2, order.unsqueeze(-1).expand_as(taken), torch.where(valid.unsqueeze(-1), taken, kept))
    return moved, torch.zeros_like(picked).scatter(2, order, valid)


def _places(picked: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Columns of the picked keys in ascending order [batch, head, most], and which of the entries are picked at all."""
    order = picked.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices[..., :most]
    found = picked.gather(-1, order)
    short = (0, most - order.shape[-1])
    return torch.nn.functional.pad(order, short), torch.nn.functional.pad(found, short)
