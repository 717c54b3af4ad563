"""`MaskSinks`: the keys that drew most attention at the last forward are hidden at this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.interventions.base import limited
from sinkscope.interventions.conditions import Condition
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.ranked import Ranked
from sinkscope.interventions.settings import Registered, add, register
from sinkscope.interventions.words import ABOVE, BELOW, KEEP_SELF, RANK, ROWS, WHICH, K, ranked_keys


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


@register("mask_sinks", K, RANK, ROWS, ABOVE, KEEP_SELF, BELOW, *WHICH, short=ranked_keys, controls=_random_keys)
@dataclass(frozen=True)
class MaskSinks(Ranked):
    """Hide the top-k sinks of the last forward, layer by layer and head by head (the paper's Table 1).

    Which keys those are follows from k, rank, rows, score, kinds, value_norm, per, above and below (see `Ranked`); nothing is
    hidden at the first forward of a generation, which has no map before it.
    """

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        ranking = self.ranking(call, memory)
        return None if ranking is None else limited(ranking.sinks, call, self.layers, self.heads)


# The two conditions that every study has beside its interventions.
add(Registered("none", (), lambda values, seed: None))
add(Registered("noop", (), lambda values, seed: MaskSinks(k=0)))
