"""Sinks of an autoregressive model by their whole column: with a key-value cache a forward has one row only.

MaskSinks ranks the map of the last forward. While an ARM writes, that map is the last token's row alone, so that "all rows"
would be the last row again. Here the rows of all forwards of the generation are added up, as the paper's cumulative score
does it for a whole map.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.interventions import MaskSinks
from sinkscope.interventions.base import limited, top
from sinkscope.interventions.memory import Memory


@dataclass(frozen=True)
class ColumnSinks(MaskSinks):
    """MaskSinks(rows="all") whose ranking adds up every row that the generation has had so far."""

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        last = memory.scores(call, self.rank, "all")
        if last is None:
            return None
        kept: dict[int, tuple[object, Tensor, Tensor]] = memory.__dict__.setdefault("columns", {})
        total, rows = last, memory.queries(call)
        known = kept.get(call.layer)
        if known is not None and known[0] is memory.run and memory.run is not None:
            _, before, earlier = known
            total = torch.nn.functional.pad(before, (0, call.keys - before.shape[-1])) + last
            rows = earlier + rows
        kept[call.layer] = (memory.run, total, rows)
        picked = top(total, self.k)
        if self.above is not None:
            picked &= self.above.marks(total, rows[:, None], total > 0)
        return limited(picked, call, self.layers, self.heads)
