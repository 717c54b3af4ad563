"""`MaskInstead`: the aligned control, one fixed token hidden in exactly the heads in which a sink would be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import Selector
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.of import SelectorIntervention
from sinkscope.interventions.positions import POSITIONS, MaskPositions
from sinkscope.interventions.settings import register
from sinkscope.interventions.sinks import MaskSinks
from sinkscope.interventions.words import ABOVE, BELOW, RANK, ROWS, WHICH, K


@register("mask_instead", K, POSITIONS, RANK, ROWS, ABOVE, BELOW, *WHICH)
@dataclass(frozen=True)
class MaskInstead(SelectorIntervention, Selector):
    """Hide the keys at `positions` in the heads and forwards in which `of` picks a key, and not the key that it picks.

    A sink is one token, the same at every step and in many heads; so is this control: another token of the chat template,
    say, in the same heads. A head whose sink stands at one of the positions is left as it is there.
    """

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "positions", (masked := MaskPositions(self.positions)).positions)
        if masked.is_noop:
            raise InterventionError("Expected at least one position to hide instead, got none.")

    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        words = {name: value for name, value in values.items() if name != "positions"}
        return cls(MaskSinks(**words), values["positions"])

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        picked = self.of.select(call, memory)
        there = MaskPositions(self.positions).select(call, memory)
        if picked is None or there is None:
            return None
        return there & picked.any(-1, keepdim=True) & ~picked

    def to_dict(self) -> dict[str, Any]:
        return {"name": type(self).__name__, **self.settings(), "of": self.of.to_dict()}
