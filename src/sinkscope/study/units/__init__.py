"""Kinds of units, one file each; `perform` runs a unit of any kind, and every engine calls it."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path
from typing import Any

from sinkscope.errors import StudyError
from sinkscope.study.schema import Study
from sinkscope.study.unit import Unit
from sinkscope.study.units.base import REGISTERED, Kind

__all__ = ["Kind", "Unit", "kind_of", "kinds", "perform"]


@functools.cache
def kinds() -> dict[str, Kind]:
    """Every kind by its name, in the order in which they are run."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(REGISTERED.items(), key=lambda item: item[1].order))


def kind_of(unit: Unit) -> Kind:
    if unit.kind not in kinds():
        raise StudyError(f"Expected a unit of a kind that is known ({', '.join(kinds())}), got {unit.kind!r}.")
    return kinds()[unit.kind]


def perform(study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
    """Run one unit; plain data that JSON holds exactly. Traces that are kept go to `folder`/traces."""
    from sinkscope.study.units.given import one_thread

    with one_thread():
        return kind_of(unit).perform(study, unit, folder)
