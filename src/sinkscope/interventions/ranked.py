"""`MaskSinks`, and which keys count as the top sinks: the choices that masking and its random controls share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.attention.context import Forward
from sinkscope.errors import InterventionError
from sinkscope.fields import Allowed, FromZero
from sinkscope.interventions.base import Layers, Selector, limited, top
from sinkscope.interventions.conditions import Condition
from sinkscope.interventions.memory import Map, Memory, Rank, Rows
from sinkscope.interventions.settings import ABOVE, KEEP_SELF, KIND_NAMES, RANK, ROWS, WHICH, K, ranked_keys, register
from sinkscope.sinks.rules import Rule
from sinkscope.sinks.tokens import KINDS, kinds_named

Kinds = Annotated[Literal["structural", "content"] | Sequence[str], KIND_NAMES]
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
    of the keys of that head at this forward) or long ("high") compete. per: "head" ranks each head by itself; "layer" sums
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
            eligible = eligible & self._of_kind(call, memory)[:, None]
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

    def _of_kind(self, call: Call, memory: Memory) -> Tensor:
        """bool [batch, key]."""
        assert self.kinds is not None
        there, indices = memory.kinds(call), [KINDS.index(kind) for kind in kinds_named(self.kinds)]
        return call.once(("kinds", *indices), lambda: torch.isin(there, torch.tensor(indices, device=there.device)))

    def _by_value_norm(self, call: Call) -> Tensor:
        """bool [batch, head, key]: keys whose value is not longer than the median of its head, or longer."""
        if call.v.shape[-1] == 0:
            raise InterventionError("value_norm=… needs the values, which torch.nn.MultiheadAttention does not expose.")
        norms = call.v.float().norm(dim=-1)  # [batch, kv head, key]
        real = torch.ones_like(norms, dtype=torch.bool) if call.real_keys is None else call.real_keys[:, None]
        median = norms.masked_fill(~real, torch.nan).nanmedian(-1, keepdim=True).values
        low = call.per_head(norms <= median)
        return low if self.value_norm == "low" else ~low


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


@register("mask_sinks", K, RANK, ROWS, ABOVE, KEEP_SELF, *WHICH[1:], short=ranked_keys, controls=_random_keys)
@dataclass(frozen=True)
class MaskSinks(Ranked):
    """Hide the top-k sinks of the last forward, layer by layer and head by head (the paper's Table 1).

    Which keys those are follows from k, rank, rows, score, kinds, value_norm, per, above and below (see `Ranked`). Nothing is
    hidden at the first forward of a generation, which has no map before it.
    """
