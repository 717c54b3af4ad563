"""`MaskSinks`, its random control `MaskRandom`, and which keys count as the top sinks: the choices that both share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import PlainValidator
from torch import Tensor

from sinkscope.attention.call import Call, untouched_columns
from sinkscope.attention.forward import PRIME, Forward, mixed
from sinkscope.errors import InterventionError, RuleError
from sinkscope.interventions.base import (
    Heads,
    Intervention,
    Label,
    Layers,
    Match,
    Selector,
    name_keys,
    name_kinds,
    restrict,
    show_kinds,
    top,
)
from sinkscope.interventions.memory import Map, Memory, Rank, Rows
from sinkscope.sinks.kinds import KINDS, kinds_named
from sinkscope.sinks.rules import Rule, rule_from_dict
from sinkscope.validation import FieldError, FromZero, Seed, Truth, settings, show_value


def _read_kinds(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple | str) and value and kinds_named(value):
        return value if isinstance(value, str) else tuple(value)
    raise ValueError(f"must be structural, content, or a list of {', '.join(KINDS)}, got {show_value(value)}")


def _read_rule(value: Any) -> Rule:
    try:
        rule = rule_from_dict(value) if isinstance(value, Mapping) else value
    except (RuleError, TypeError) as error:
        raise ValueError(f"is no sink rule: {str(error).rstrip('.')}") from None
    if not isinstance(rule, Rule) or rule.group != "all":  # of a group it would have no effect
        raise ValueError(f"must be a sink rule of all queries, such as HeadShare(0.3), got {show_value(value)}")
    return rule


def _label_rule(word: str, place: int) -> Label:
    return Label(lambda rule: f"{word} {','.join(map(str, rule.to_dict().values()))}", place)


Kinds = Annotated[str | tuple[str, ...], PlainValidator(_read_kinds), Label(name_kinds, 53)]
Among = Annotated[Literal["all", "prompt"], Label("in the {}", 55)]
SinkRule = Annotated[Rule, PlainValidator(_read_rule)]
Above = Annotated[SinkRule, _label_rule("above", 90)]
Below = Annotated[SinkRule, _label_rule("below", 91)]
LEAST_ROWS = 4  # score="per_row": a key that fewer rows of a causal model have seen does not compete


class Ranking(NamedTuple):
    """What a ranking came to, of one layer or of several at once."""

    forward: Forward | None
    layers: tuple[int, ...]
    sinks: Tensor  # bool [layer, batch, head, key]: the picked keys
    eligible: Tensor  # … keys that are there, of the kinds and value norms asked for

    def place(self, call: Call) -> int:
        return self.layers.index(call.layer)


@settings(InterventionError)
class Ranked(Selector, noop={"k": 0}):
    """Ranks the keys of the last forward.

    Every head picks its own, unless `per` says otherwise.
    k: how many keys. rank: "clean" ranks unmasked attention (what the same queries and keys would have given), "as_run"
    the applied attention (a masked key scores 0 there and is free again at the next step). rows: "all" queries vote, or
    only the "last" one. A causal model with a key-value cache makes one row per forward; there "all" means all rows so far.
    score: "sum" ranks column sums. "per_row" divides them by the rows that see the key, since the early keys of a causal
    model are seen by more (for a bidirectional model that is a constant; keys that fewer than 4 rows of a causal model
    have seen are left out).
    kinds: only keys of these kinds of token compete: "structural" (mask, begin, end, template, newline, punctuation,
    space), "content" (all others), or a list of kinds. value_norm: only keys whose value is short ("low": up to the median
    of the keys of that head at this forward) or long ("high") compete. among: "prompt" lets only keys of the prompt
    compete. per: "head" ranks each head by itself; "layer" sums
    over the heads of a layer and "model" over those of all layers, and all of them take the same keys (where eligible).
    above: a sink rule; a key is taken only where it is marked in that head. below: a rule; keys are taken only in heads
    where *no* key is marked. keep_self: a hidden key may still attend to itself.
    """

    k: Annotated[FromZero, Label("K={}", 10)]
    rank: Annotated[Rank, Label("{}", 20)] = "clean"
    rows: Annotated[Rows, Label(lambda rows: f"by {rows} row{'s' * (rows == 'all')}", 50)] = "all"
    keep_self: Annotated[Truth, Label("keep self", 100)] = False
    above: Above | None = None
    layers: Layers | None = None
    heads: Heads | None = None
    below: Below | None = None
    kinds: Kinds | None = None
    value_norm: Annotated[Literal["low", "high"], Label("{} value norm", 54)] | None = None
    per: Annotated[Literal["head", "layer", "model"], Label("per {}", 52)] = "head"
    score: Annotated[Literal["sum", "per_row"], Label("per row that sees it", 51)] = "sum"
    among: Among = "all"
    always: ClassVar[tuple[str, ...]] = ("rank", "rows")

    def __post_init__(self) -> None:
        if self.score == "per_row" and self.rows == "last":
            raise FieldError("has no effect with rows='last'; leave it out, or rank all rows", "score")

    def maps(self) -> set[Map]:
        return {(self.rank, self.rows)}

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        found = self.ranking(call, memory)
        return None if found is None else restrict(found.sinks[found.place(call)], call, self.layers, self.heads)

    def ranking(self, call: Call, memory: Memory) -> Ranking | None:
        """The top keys of the last forward, of this layer and in one go with it of others that need nothing but what that left.

        None where there was no forward.
        """
        if call.layer not in memory.layers:
            return None
        found: Ranking | None = memory.own.get(("ranked", self, call.layer))
        if found is not None and found.forward is call.forward:
            return found
        rules = self.above is not None or self.below is not None
        alone = call.forward is None or rules or self.score == "per_row" or self.value_norm is not None
        layers = [call.layer] if alone else memory.alike(call, self.rank, self.rows)
        parts = [memory.scores_at(layer, call.keys, self.rank, self.rows) for layer in layers]
        own = torch.stack([part for part in parts if part is not None])  # [layer, batch, head, key]
        scores, eligible = own, own > 0  # padding and keys that are not there yet score 0
        if self.per == "layer":
            scores = own.sum(2, keepdim=True).expand_as(own)
        elif self.per == "model" and (whole := memory.whole(call, self.rank, self.rows)) is not None:
            scores = whole.expand_as(own)
        if self.score == "per_row":
            seen = memory.seen(call)[:, None]
            scores = scores / seen.clamp(min=1)
            if call.directed:
                eligible = eligible & (seen >= LEAST_ROWS)
        if self.kinds is not None:
            eligible = eligible & keys_of_kinds(self.kinds, call, memory)[:, None]
        if self.among == "prompt":
            eligible = eligible & prompt_keys(call)
        if self.value_norm is not None:
            eligible = eligible & self._by_value_norm(call)
        picked = top(scores.masked_fill(~eligible, 0.0), self.k)
        if self.above is not None:
            picked &= self._marked(self.above, own[0], call, memory)
        if self.below is not None:
            picked &= ~self._marked(self.below, own[0], call, memory).any(-1, keepdim=True)
        found = Ranking(call.forward, tuple(layers), picked, eligible)
        if not alone:
            memory.own |= {("ranked", self, layer): found for layer in layers}
        return found

    def _marked(self, rule: Rule, own: Tensor, call: Call, memory: Memory) -> Tensor:
        """bool [batch, head, key]: the keys that the rule marks in the head's own columns."""
        if self.rows == "last":
            return rule.marks(own, 1.0, own > 0)
        seen = memory.seen(call)[:, None].expand_as(own)
        return rule.marks(own, memory.queries(call)[:, None], own > 0, seen)

    def _by_value_norm(self, call: Call) -> Tensor:
        """bool [batch, head, key]: keys whose value is not longer than the median of its head, or longer."""
        if call.v.shape[-1] == 0:
            raise InterventionError("value_norm=… needs the values, which torch.nn.MultiheadAttention does not expose.")
        norms = call.v.float().norm(dim=-1)  # [batch, kv head, key]
        real = torch.ones_like(norms, dtype=torch.bool) if call.real_keys is None else call.real_keys[:, None]
        median = norms.masked_fill(~real, torch.nan).nanmedian(-1, keepdim=True).values
        low = call.per_head(norms <= median)
        return low if self.value_norm == "low" else ~low


def keys_of_kinds(kinds: Kinds, call: Call, memory: Memory) -> Tensor:
    """bool [batch, key]: the keys whose token is of one of these kinds."""
    found, indices = memory.kinds(call), [KINDS.index(kind) for kind in kinds_named(kinds)]
    return call.once(("kinds", *indices), lambda: torch.isin(found, torch.tensor(indices, device=found.device)))


def prompt_keys(call: Call) -> Tensor:
    """bool [key]: the keys that stand in the prompt."""
    if call.forward is None:
        raise InterventionError(
            "among='prompt' needs a decoder that knows the prompt; generate with sk.decode, sk.trace or model.generate."
        )
    return torch.arange(call.keys, device=call.q.device) < call.forward.prompt


@settings(InterventionError)
class MaskSinks(Ranked):
    """Hide the top-k sinks of the last forward, layer by layer and head by head (the paper's Table 1).

    Which keys those are follows from k, rank, rows, score, kinds, value_norm, per, above and below (see `Ranked`). Nothing is
    hidden at the first forward of a generation, which has no map before it.
    """

    name: ClassVar[str] = "mask_sinks"

    def as_random(self, match: Match = "count") -> MaskRandom:
        """Random keys of the same settings."""
        return MaskRandom(**{one.name: getattr(self, one.name) for one in fields(self)}, match=match)

    def controls(self) -> Mapping[Match, Sequence[Intervention]]:
        """As many random keys are as many, whichever rows ranked those that they must not be.

        But the mass to match is that of the sinks of this very ranking.
        """
        count = [self.as_random("count")]
        if self.above is None and self.below is None:
            count += [MaskRandom(self.k, "clean", rows) for rows in (self.rows, "last", "all")]
        return {"count": count, "mass": [self.as_random("mass")]}

    @classmethod
    def short_name(cls, words: Mapping[str, Any], causal: bool) -> str | None:
        return name_keys(words)


# ---- the random control ----


ONE_FOR_ALL = {"persist", "aligned", "among", "avoid"}  # with k=1: one key of the prompt, for all heads and steps


@settings(InterventionError)
class MaskRandom(Ranked):
    """Hide random keys with the budget of MaskSinks of the same settings, head by head, from the second forward on.

    The keys are drawn among those that MaskSinks would not take but that compete with them: of the same kinds and value
    norms, where those are given. match: "count" hides as many keys (the count-matched control); "mass" hides keys in random
    order until they draw, at this very forward, what the sinks draw there (the mass-matched control: where all other keys
    draw less, all). A key cannot be hidden by halves: the last one is hidden with the chance that makes the mean right.
    avoid: how many of the top keys are never drawn, as many as k unless given.
    persist: one draw per generation. Keys are taken in the same random order at every step, avoiding the sinks of the first
    ranking, so that count-matched keys stay the same. aligned: one draw for all heads of all layers. Each head avoids its own
    sinks; with per="model" all avoid the same ones, and hide the same keys: as a sink does that is one token for all heads.
    All rows of a batch share a draw, unless the decoder names a seed per row (`Forward.row_seeds`).
    """

    name: ClassVar[str] = "mask_random"
    always: ClassVar[tuple[str, ...]] = ("rank", "rows", "match")
    seed: Seed = 0
    match: Annotated[Match, Label("{}", 40)] = "count"
    persist: Annotated[Truth, Label("persistent", 60)] = False
    aligned: Annotated[Truth, Label("aligned", 61)] = False
    avoid: Annotated[FromZero, Label("avoiding {}", 62)] | None = None

    @classmethod
    def short_name(cls, words: Mapping[str, Any], causal: bool) -> str | None:
        """random for content key, ≤ its mass; by which ranking the avoided keys are found is not said, their rows are."""
        one_for_all = {"persist", "aligned", "among"} <= set(words) and words.get("k") == 1
        as_usual = {"match": "count", "rank": "clean", "rows": "all"}
        telling = {name for name, value in words.items() if as_usual.get(name) != value}
        if one_for_all and telling <= {"persist", "aligned", "among", "avoid", "k", "above", "kinds"}:
            keys = f"another {show_kinds(words.get('kinds'))}"
            return f"{keys}, same heads" if "above" in words else keys
        names = name_keys({name: value for name, value in words.items() if name not in ("match", "rank")})
        if names is None:
            return None
        keys, *rows = names.split(", ")
        match = "≤ its mass" if words.get("match") == "mass" else "as many"
        return ", ".join(["random" if keys == "most-attended key" else f"random for {keys}", match, *rows])

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        found = self.ranking(call, memory)
        if found is None:
            return None
        place = found.place(call)
        if self.match == "mass" or self.persist or self.avoid is not None:  # layers need something of their own
            alone = slice(place, place + 1)
            picked = self._picked(call, memory, (call.layer,), found.sinks[alone], found.eligible[alone])[0]
        else:
            known, several = memory.own.get(("random", self), (None, None))
            if known is not found or several is None:
                several = self._picked(call, memory, found.layers, found.sinks, found.eligible)
                memory.own["random", self] = found, several
            picked = several[place]
        return restrict(picked, call, self.layers, self.heads)

    def _picked(self, call: Call, memory: Memory, layers: tuple[int, ...], sinks: Tensor, may: Tensor) -> Tensor:
        """bool [layer, batch, head, key]."""
        others = self.persist or self.avoid is not None  # not the sinks of this step
        may = may & ~(self._avoided(sinks[0], call, memory)[None] if others else sinks)
        chance = self._chance(call, memory, layers).masked_fill(~may, -1.0)
        order = chance.sort(dim=-1, descending=True, stable=True).indices
        if self.match == "count":
            enough = torch.arange(call.keys, device=may.device).expand_as(order) < sinks.sum(-1, keepdim=True)
        else:
            now = untouched_columns(call).sum(2)[None]
            mass = now.gather(-1, order)
            target = (now * sinks).sum(-1, keepdim=True)
            # CUDA adds up in no fixed order: in float64 that decides nothing.
            before = (mass.double() if mass.is_cuda else mass).cumsum(-1) - mass
            heads = 1 if self.aligned else call.q.shape[1]
            luck = self._draws(call, memory, layers, (heads, 1), purpose=500_009)
            enough = before + luck * mass < target
        return torch.zeros_like(may).scatter(-1, order, enough) & may

    def _avoided(self, sinks: Tensor, call: Call, memory: Memory) -> Tensor:
        """bool [batch, head, key]: the sinks of this step, or of the first one that was ranked."""
        if self.avoid is not None:
            ranking = replace(self, k=self.avoid).ranking(call, memory)
            sinks = sinks if ranking is None else ranking.sinks[ranking.place(call)]
        if not self.persist:
            return sinks
        first: Tensor = memory.own.setdefault((id(self), call.layer), sinks)
        return torch.nn.functional.pad(first, (0, call.keys - first.shape[-1]))

    def _draws(
        self, call: Call, memory: Memory, layers: tuple[int, ...], shape: tuple[int, int], purpose: int = 0
    ) -> Tensor:
        """Uniform numbers of this step, [layer, batch | 1, *shape] on the device of the call; another purpose, others."""
        own = None if call.forward is None else call.forward.row_seeds
        # With guidance the second half of a batch is a copy of the first.
        rows = [self.seed] if own is None else [self.seed * PRIME + own[i % len(own)] for i in range(len(call.q))]
        step, device = 0 if self.persist else memory.step(call), call.q.device
        layers = tuple(0 for _ in layers) if self.aligned else layers
        seeds = [mixed(row, step, layer + purpose) for layer in layers for row in rows]
        drawn = torch.stack([torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        drawn = drawn.view(len(layers), len(rows), -1).to(device, non_blocking=True)
        return drawn.view(len(layers), len(rows), *shape)

    def _chance(self, call: Call, memory: Memory, layers: tuple[int, ...]) -> Tensor:
        """Uniform numbers [layer, batch, head, key] of this step, the same for a row alone or in a padded batch."""
        drawn = self._draws(call, memory, layers, (call.keys, 1 if self.aligned else call.q.shape[1])).mT
        drawn = drawn.expand(-1, call.q.shape[0], call.q.shape[1], -1)
        padding = None if call.forward is None else call.forward.padding
        if padding is None:
            return drawn

        def shifted() -> Tensor:
            columns = torch.arange(call.keys, device=call.q.device)
            return (columns - padding.to(columns.device, non_blocking=True)[:, None]).clamp(min=0)

        return drawn.gather(-1, call.once("shifted", shifted)[:, None, :].expand_as(drawn))
