"""From stored units to results: typed rows, verdicts and claims from stated rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import polars as pl

from sinkscope.study.analysis import accuracy, readings, traces
from sinkscope.study.analysis.claims import claims
from sinkscope.study.analysis.verdicts import verdicts
from sinkscope.study.results import Results, RunFacts, Tables
from sinkscope.study.schema import Study
from sinkscope.study.units import ModelInfo, Unit


def analysed(
    study: Study, models: Sequence[ModelInfo], units: Sequence[Unit], load: accuracy.Loaded, about: Mapping[str, Any]
) -> tuple[Results, pl.DataFrame]:
    """All tables of a run, and every answer as a table of its own; load: a unit's stored result."""
    by_id = {unit.id: unit for unit in units}
    read_once = cache(lambda name: load(by_id[name]))

    def stored(unit: Unit) -> dict[str, Any]:
        return read_once(unit.id)

    by_task = accuracy.collect(units, stored)
    together = accuracy.pooled(by_task)
    traced = traces.gather(units, stored)
    tables = Tables(
        cells=accuracy.cells(study, models, by_task),
        pooled=accuracy.pooled_cells(study, models, together),
        settings=accuracy.sweep_points(together),
        tokens=traces.token_shares(study, traced),
        kinds=traces.kind_shares(study, traced),
        dynamics=traces.dynamics(study, traced),
        curves=traces.curves(study, traced),
        mechanism=readings.mechanisms(study, units, stored),
        likelihood=readings.likelihoods(study, models, units, stored),
        first_key=readings.first_keys(units, stored),
    )
    facts = RunFacts(
        **{name: about[name] for name in ("study", "seed", "models", "versions", "backend")},
        about=study.about, units=len(units), conditions=len(study.conditions), margin=study.margin,
    )  # fmt: skip
    margin = study.margin / 100
    results = Results(**vars(tables), verdicts=verdicts(tables, margin), run=facts, claims=claims(tables, margin))
    return results, accuracy.answer_table(units, stored)
