"""Conditions that change how a model decodes: read, planned, run and refused like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sinkscope as sk
from made_conditions import make_condition
from sinkscope.conditions import Condition
from sinkscope.decoding.settings import Decode
from sinkscope.study.problem_sets import run_unit
from sinkscope.study.units import ModelInfo, Unit, units_of


def study(conditions: list[Any], **more: Any) -> sk.Study:
    words = {"name": "caches", "models": ["tiny-llada"], "tasks": [{"name": "arithmetic", "problems": 4}]}
    return sk.Study.from_dict(
        {**words, "decode": {"length": 16, "block": 8, "steps": 16}, "conditions": conditions, **more}
    )


def facts(made: sk.Study) -> ModelInfo:
    unit = Unit("facts", made.models[0], make_condition("none"), shown=made.models[0])
    return ModelInfo(**run_unit(made, unit, Path()))


def test_a_sweep_of_caches_is_planned_with_its_decode_settings() -> None:
    made = study(
        ["none", {"name": "sparse_cache", "by": ["received", "random"], "keep": [0.5, 0.25]}, {"name": "cache"}]
    )
    assert sk.Study.from_dict(made.to_dict()) == made
    caches = {unit.condition.label: Decode.from_dict(dict(unit.decode)).cache for unit in units_of(made, [facts(made)])}
    assert caches == {
        "none": None, "cache dual": "dual",
        **{f"sparse cache by {by} keep={keep:g}": sk.SparseCache(keep=keep, by=by)  # type: ignore[arg-type]
           for by in ("received", "random") for keep in (0.5, 0.25)},
    }  # fmt: skip


def test_conditions_survive_a_file_and_shares_are_one_series() -> None:
    half, quarter = (make_condition("sparse_cache", by="sinks", keep=keep) for keep in (0.5, 0.25))
    assert Condition.from_dict(half.to_dict()) == half
    assert half.series() == quarter.series() != make_condition("sparse_cache", by="recent", keep=0.5).series()
    assert half.seeded(0) is None and make_condition("mask_sinks", 1).decode == {}


@pytest.mark.parametrize(
    ("entry", "told"),
    [({"name": "sparse_cache", "keep": 2}, "keep must be"), ({"name": "sparse_cache", "by": "luck"}, "by must be"),
     ({"name": "cache", "kind": "exact"}, "kind is wrong"), ({"name": "sparse_cache", "kind": "dual"}, "kind is not a field")],
)  # fmt: skip
def test_bad_caches_are_refused(entry: dict[str, Any], told: str) -> None:
    with pytest.raises(sk.SinkscopeError, match=told):
        study(["none", entry])


def test_a_cache_that_does_not_fit_is_told_before_anything_runs() -> None:
    made = study(["none", {"name": "sparse_cache"}], models=["tiny-llama"])
    with pytest.raises(sk.SinkscopeError, match="does not go with tiny-llama"):
        facts(made)
    with pytest.raises(sk.SinkscopeError, match="reading a text decodes nothing"):
        study(["none"], likelihood={"models": ["tiny-llama"], "conditions": ["none", {"name": "cache"}]})


def test_answers_with_random_keys_do_not_depend_on_the_chunk() -> None:
    conditions = ["none", {"name": "sparse_cache", "by": "random", "keep": 0.25}]
    answers = []
    for chunk in (1, 4):
        made = study(conditions, chunk=chunk)
        units = [unit for unit in units_of(made, [facts(made)]) if unit.condition.name == "sparse_cache"]
        rows = [row for unit in units for row in run_unit(made, unit, Path())["rows"]]
        answers.append({row["problem"]: row["tokens"] for row in rows})
    assert len(answers[0]) == 4 and answers[0] == answers[1]
