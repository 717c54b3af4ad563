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
    """Base class of interventions that rank the keys of each head by the attention that they received in the previous
    forward.

    At the first forward of a generation there is no ranking, and nothing is changed.

    Args:
        k: Number of keys per head.
        rank: Attention that is ranked: "clean" is unmasked attention, which the same queries and keys would have given;
            "as_run" is the attention with masked keys, in which a masked key scores 0 and is therefore unmasked at the
            next step.
        rows: Queries that are summed: "all", or "last" for the last query alone. In a causal model with a cache, "all"
            means all queries so far.
        keep_self: Whether a masked key may still attend to itself.
        above: Sink rule; only keys that it marks in the head are taken.
        layers: Layer indices in which the intervention acts; None for all.
        heads: Head indices, or pairs of layer and head, in which the intervention acts; None for all.
        below: Sink rule; only heads in which it marks no key are changed.
        kinds: Token categories that compete: "structural" (mask, BOS, EOS, template, newline, punctuation, space),
            "content" (all others), or a list of categories; None for all.
        value_norm: Value norms that compete: "low" (up to the median of the head's keys at this forward) or "high";
            None for all.
        per: Scope of the ranking: "head" ranks each head by itself; "layer" sums over the heads of a layer and "model"
            over the heads of all layers, so that all of them take the same keys.
        score: Score that is ranked: "sum" is the column sum; "per_row" divides it by the number of queries that may
            attend to the key, because early keys of a causal model have more of them. Keys with fewer than 4 such
            queries are left out.
        among: Keys that compete: "all", or "prompt" for keys of the prompt.
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
        """Rank the keys of the previous forward, for this layer and for other layers that need nothing else; None at
        the first forward.

        Args:
            call: Attention call.
            memory: Memory of this generation.
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
    """Mask the k most-attended keys of each head (the paper's Table 1).

    The settings are those of `Ranked`.
    """

    name: ClassVar[str] = "mask_sinks"

    def as_random(self, match: Match = "count") -> MaskRandom:
        """Return the control that masks random keys with the same settings.

        Args:
            match: Match of the control, as in `MaskRandom`.
        """
        return MaskRandom(**{one.name: getattr(self, one.name) for one in fields(self)}, match=match)

    def controls(self) -> Mapping[Match, Sequence[Intervention]]:
        """Return the random-key controls, matched by number and by received attention.

        The match by received attention needs this very ranking; the match by number does not.
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
    """Mask random keys, as a control for `MaskSinks` with the same settings.

    Keys are sampled among those that `MaskSinks` would not take but that compete with them. All sequences of a batch
    share the sample, unless the decoder has a seed per sequence. Settings that the table leaves out are those of
    `Ranked`.

    Args:
        seed: Seed of the random keys.
        match: Size of the control: "count" masks as many keys; "mass" masks keys in random order until they receive as
            much attention in this forward as the sinks do. The last key is masked at random, so that the expected
            attention matches.
        persist: Whether the keys are taken in the same random order at every step of a generation, so that keys of a
            count match stay the same.
        aligned: Whether all heads of all layers share the random order; each head avoids its own sinks.
        avoid: Number of most-attended keys that are never sampled; the default is `k`.
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
        """Return a name for tables; None if a few words cannot express all settings.

        Args:
            words: Settings, as in results. The queries of the ranking are part of the name; its attention (`rank`) is
                not.
            causal: Whether the model is autoregressive.
        """
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
