"""An intervention that does something else to the keys which another one would hide."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.attention.listeners import Caught
from sinkscope.attention.selection import Shape
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import Intervention, Selector
from sinkscope.interventions.memory import Map


@dataclass(frozen=True)
class SelectorIntervention(Intervention):
    """of: MaskSinks, MaskRandom, MaskPositions or CutContext: whose keys, not whether they are hidden."""

    of: Selector

    def __post_init__(self) -> None:
        if not isinstance(self.of, Selector):
            raise InterventionError(
                f"Expected of=MaskSinks(…) or another intervention that picks keys, got {self.of!r}."
            )
        if self.of.steps is not None:
            raise InterventionError(
                f"Expected steps={self.of.steps} on {type(self).__name__}, where it has an effect, got it on its selector."
            )

    @property
    def is_noop(self) -> bool:
        return self.of.is_noop

    @property
    def needs_kinds(self) -> bool:
        return self.of.needs_kinds

    def check(self, shape: Shape) -> None:
        self.of.check(shape)

    def check_seen(self, caught: Caught, name: str) -> None:
        self.of.check_seen(caught, name)

    def maps(self) -> set[Map]:
        return self.of.maps()
