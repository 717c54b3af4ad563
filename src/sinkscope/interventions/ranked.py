"""`MaskSinks`, its random control `MaskRandom`, and which keys count as the top sinks: the choices that both share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, untouched_columns
from sinkscope.attention.forward import GOLDEN, PRIME, Forward, key_of, mix, mixed, uniform64
from sinkscope.errors import InterventionError
from sinkscope.fields import Allowed, FromZero
from sinkscope.interventions.base import Layers, Selector, limited, top
from sinkscope.interventions.conditions import Condition
from sinkscope.interventions.memory import Map, Memory, Rank, Rows
from sinkscope.interventions.settings import (
    ABOVE,
    AMONG,
    DRAWN,
    KEEP_SELF,
    KIND_NAMES,
    MATCH,
    RANK,
    ROWS,
    WHICH,
    K,
    ranked_keys,
    register,
)  # fmt: skip
from sinkscope.sinks.rules import Rule
from sinkscope.sinks.tokens import KINDS, kinds_named

Kinds = Annotated[Literal["structural", "content"] | Sequence[str], KIND_NAMES]
Among = Literal["all", "prompt"]
SinkRule = Annotated[
    Rule,
    Allowed(
        "a sink rule of all queries (one of a group has no effect here), such as HeadShare(0.3)",
        lambda rule: isinstance(rule, Rule) and rule.group == "all",
    ),
]
LEAST_ROWS = 4  # score="per_row": a key that fewer rows of a causal model have seen does not compete


class Ranking(NamedTuple):
    """What a ranking came to, of one layer or of several at once."""

    forward: Forward | None
    layers: tuple[int, ...]
    sinks: Tensor  # bool [layer, batch, head, key]: the picked keys
    eligible: Tensor  # … keys that are there, of the kinds and value norms asked for

    def place(self, call: Call) -> int:
        return self.layers.index(call.layer)


@dataclass(frozen=True)
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

    k: FromZero
    rank: Rank = "clean"
    rows: Rows = "all"
    keep_self: bool = False
    above: SinkRule | None = None
    layers: Layers | None = None
    heads: Layers | None = None
    below: SinkRule | None = None
    kinds: Kinds | None = None
    value_norm: Literal["low", "high"] | None = None
    per: Literal["head", "layer", "model"] = "head"
    score: Literal["sum", "per_row"] = "sum"
    among: Among = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score == "per_row" and self.rows == "last":
            raise InterventionError(
                "Expected score='per_row' with rows='all', got rows='last', where it has no effect."
            )

    def maps(self) -> set[Map]:
        return {(self.rank, self.rows)}

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        found = self.ranking(call, memory)
        return None if found is None else limited(found.sinks[found.place(call)], call, self.layers, self.heads)

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


def _random_keys(condition: Condition) -> dict[Literal["count", "mass"], list[Condition]]:
    """Controls: random keys of the same settings, matched by count or by mass.

    As many random keys are as many, whichever rows ranked those that they must not be; but the mass to match is that of the
    sinks of this very ranking.
    """
    words = dict(condition.settings)
    count, mass = ([Condition("mask_random", **{**words, "match": match})] for match in ("count", "mass"))
    if not {"above", "below"} & set(words):
        count += [
            Condition("mask_random", condition.k, "clean", rows, "count") for rows in (condition.rows, "last", "all")
        ]
    return {"count": count, "mass": mass}


@register("mask_sinks", K, RANK, ROWS, ABOVE, KEEP_SELF, *WHICH[1:], AMONG, short=ranked_keys, controls=_random_keys)
@dataclass(frozen=True)
class MaskSinks(Ranked):
    """Hide the top-k sinks of the last forward, layer by layer and head by head (the paper's Table 1).

    Which keys those are follows from k, rank, rows, score, kinds, value_norm, per, above and below (see `Ranked`). Nothing is
    hidden at the first forward of a generation, which has no map before it.
    """


# ---- the random control ----


ONE_FOR_ALL = {"persist", "aligned", "among", "avoid"}  # with k=1: one key of the prompt, for all heads and steps


def _short_name(given: Mapping[str, Any], causal: bool) -> str | None:
    """random for content key, ≤ its mass; by which ranking the avoided keys are found is not said, their rows are."""
    if ONE_FOR_ALL - {"avoid"} <= set(given) <= ONE_FOR_ALL | {"k", "above", "kinds"} and given.get("k") == 1:
        kinds = given.get("kinds", "")
        words = f"one other {kinds if isinstance(kinds, str) else '+'.join(kinds)}".strip()
        return f"{words} prompt key in the sink's heads" if "above" in given else f"{words} prompt key"
    names = ranked_keys({name: value for name, value in given.items() if name not in ("match", "rank")})
    if names is None:
        return None
    keys, *rows = names.split(", ")
    match = "≤ its mass" if given.get("match") == "mass" else "as many"
    return ", ".join(["random" if keys == "top key" else f"random for {keys}", match, *rows])


@register("mask_random", K, RANK, ROWS, MATCH, KEEP_SELF, *WHICH, AMONG, *DRAWN, short=_short_name)
@dataclass(frozen=True)
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
    noise: "reference" draws by torch's CPU generator, "counter" on the device; both give the same keys on every device.
    All rows of a batch share a draw, unless the decoder names a seed per row (`Forward.row_seeds`).
    """

    seed: FromZero = 0
    match: Literal["count", "mass"] = "count"
    persist: bool = False
    aligned: bool = False
    avoid: FromZero | None = None
    noise: Literal["reference", "counter"] = "reference"

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
        return limited(picked, call, self.layers, self.heads)

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
        if self.noise == "counter":
            keys = [[key_of(row, step, layer, purpose) for row in rows] for layer in layers]
            places = torch.arange(1, shape[0] * shape[1] + 1, device=device).mul_(GOLDEN)
            begun = torch.tensor(keys).to(device, non_blocking=True)
            drawn = uniform64(mix(begun[..., None] + places)).to(torch.float32)
        else:
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
