"""`MaskSinks`: the keys that drew most attention at the last forward are hidden at this one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.interventions.base import limited
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.ranked import Ranked
from sinkscope.interventions.settings import Registered, add, register
from sinkscope.interventions.words import ABOVE, BELOW, KEEP_SELF, RANK, ROWS, WHICH, K


@register("mask_sinks", K, RANK, ROWS, ABOVE, KEEP_SELF, BELOW, *WHICH)
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
