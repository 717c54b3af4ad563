"""The plan of a study: every kind of unit says which units it needs of every model."""

from __future__ import annotations

from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo, Unit
from sinkscope.study.units import kinds

__all__ = ["ModelInfo", "Study", "Unit", "units_of"]


def units_of(study: Study, facts: list[ModelInfo]) -> list[Unit]:
    """All units in the order in which they are run: a model at a time, what everything is compared with first."""
    return [unit for fact in facts for kind in kinds().values() for unit in kind.plan(study, fact)]
