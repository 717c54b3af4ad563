"""From stored units to results: typed rows, verdicts, and the files that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from sinkscope.study.analysis import accuracy, answers, behaviour, likelihood, mechanism
from sinkscope.study.analysis.answers import Loaded
from sinkscope.study.analysis.claims import claims
from sinkscope.study.analysis.results import Results, RunFacts
from sinkscope.study.analysis.verdicts import verdicts
from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo, Unit


def analysed(
    study: Study, facts: Sequence[ModelInfo], units: Sequence[Unit], load: Loaded, about: Mapping[str, Any]
) -> tuple[Results, pl.DataFrame]:
    """All tables of a run, and every answer as a table of its own."""
    stored: dict[str, dict[str, Any]] = {}

    def once(unit: Unit) -> dict[str, Any]:
        if unit.id not in stored:
            stored[unit.id] = load(unit)
        return stored[unit.id]

    by_task = answers.collect(units, once)
    together = answers.pooled(by_task, [task.name for task in study.tasks])
    traced = behaviour.gather(units, once)
    tables: dict[str, Any] = {
        "cells": accuracy.cells(study, facts, by_task),
        "pooled": accuracy.pooled_cells(study, facts, together),
        "settings": accuracy.settings_compared(together),
        "tokens": behaviour.token_table(study, traced),
        "kinds": behaviour.kind_table(study, traced),
        "dynamics": behaviour.dynamics(study, traced),
        "curves": behaviour.curves(study, traced),
        "mechanism": mechanism.mechanisms(study, units, once),
        "likelihood": likelihood.likelihoods(study, facts, units, once),
        "first_key": likelihood.first_keys(units, once),
    }
    facts_of_run = RunFacts(
        **{name: about[name] for name in ("study", "seed", "models", "versions", "backend")},
        about=study.about, units=len(units), conditions=len(study.conditions), margin=study.margin,
    )  # fmt: skip
    margin = study.margin / 100
    results = Results(**tables, verdicts=verdicts(tables, margin), run=facts_of_run, claims=claims(tables, margin))
    return results, answers.table(units, once)
