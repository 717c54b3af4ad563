"""What a kind of unit must do: plan its units, perform one, say what a stored result holds, and check its controls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from sinkscope.errors import StudyError
from sinkscope.interventions.conditions import Condition
from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo, Unit

REGISTERED: dict[str, Kind] = {}


class Kind(ABC):
    """One kind of unit; a subclass in a file of this folder registers itself by being there."""

    name: ClassVar[str]
    order: ClassVar[int]  # kinds of one model are run in this order
    holds: ClassVar[str] = "rows"  # the list that a stored result must have
    unchanged: ClassVar[str | None] = None  # field of a row that must be the same when nothing is masked
    what: ClassVar[str] = ""  # how an error calls that field

    def __init_subclass__(cls) -> None:
        REGISTERED[cls.name] = cls()

    @abstractmethod
    def plan(self, study: Study, fact: ModelInfo) -> list[Unit]:
        """The units that a model needs."""

    @abstractmethod
    def perform(self, study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
        """Run one unit: plain data that JSON holds exactly, and that depends on study and unit alone."""

    def complete(self, result: Any) -> bool:
        """Whether this is a result, not a piece of one."""
        return isinstance(result, dict) and isinstance(result.get(self.holds), list)

    def twin(self, unit: Unit) -> Unit | None:
        """The unit that must give the same: of none the noop, of noop the none."""
        other = {"none": "noop", "noop": "none"}.get(unit.condition.name)
        if self.unchanged is None or other is None:
            return None
        return replace(unit, condition=Condition(other))

    def check(self, unit: Unit, result: dict[str, Any], twin: dict[str, Any] | None) -> None:
        """A masked key must receive exactly nothing, and masking nothing must change nothing."""
        leak = result.get("effect", {}).get("leak", 0.0)
        if unit.condition.must_take_effect and leak != 0:
            raise StudyError(
                f"The control failed: masked keys of {unit.shown} still received {leak:.3g} of attention under "
                f"{unit.condition.label}; masking did not take effect, report it with {unit.id}."
            )
        if result.get("effect", {}).get("moved") == 0 and unit.condition.get("at") != "sinks":  # there may be no sink
            raise StudyError(
                f"The control failed: {unit.condition.label} changed no activation of {unit.shown}; report it with {unit.id}."
            )
        if twin is None or self.unchanged is None:
            return
        before = {row["problem"]: row[self.unchanged] for row in twin["rows"]}
        for row in result["rows"]:
            if row[self.unchanged] != before[row["problem"]]:
                raise StudyError(
                    f"The control failed: masking nothing changed {self.what.format(task=unit.task)} number {row['problem']}, "
                    f"of {unit.shown}; no difference in this run can be trusted, report it with {unit.id}."
                )


def wanted(study: Study, fact: ModelInfo) -> list[Condition]:
    """The study's conditions that are for this model."""
    kind = "causal" if fact.causal else "diffusion"
    return [condition for condition, models in study.conditions if models in ("all", kind)]


def decode_of(fact: ModelInfo, setting: str, condition: Condition) -> dict[str, Any]:
    """Decode settings of a model at a point of the sweep, under a condition that may change them."""
    return {**fact.settings[setting], **condition.decode}
