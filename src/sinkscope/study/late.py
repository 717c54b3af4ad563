"""Given positions hidden from the second forward on: what MaskSinks does, if the sinks were known beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.interventions import MaskPositions
from sinkscope.interventions.memory import Memory


@dataclass(frozen=True)
class LatePositions(MaskPositions):
    """MaskPositions that leaves the first forward alone: for an ARM the prompt is read undisturbed, as under MaskSinks."""

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        return None if memory.step(call) == 0 else super().select(call, memory)
