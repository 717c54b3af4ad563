"""What is made of traces and of the two halves of the positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from made_conditions import make_condition
from sinkscope.statistics import bootstrap
from sinkscope.study.schema import Study
from sinkscope.study.units import Unit
from sinkscope.study.units.mechanism import mechanism_rows as mechanisms


def test_gaps_are_compared_with_those_under_random_keys_problem_by_problem() -> None:
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for problem in range(6):
        hard = rng.normal()  # moves both gaps alike
        halves = {"sinks_high": hard - 0.1, "sinks_low": 0.0, "random_high": hard, "random_low": 0.0}
        rows.append(
            {
                "problem": problem,
                "positions": 4,
                **{f"{what}_{name}": value for what in ("confidence", "delay") for name, value in halves.items()},
            }
        )
    unit = Unit(
        "mechanism", "m", make_condition("mask_sinks", 2, "clean", "all"), shown="m", decode={"confidence": "entropy"}
    )
    study = Study.load("quick")
    (row,) = mechanisms(study, [unit], lambda _: {"rows": rows})
    found = row.to_dict()
    assert found["unit"] == "nats"
    for what in ("confidence", "delay"):
        beyond = found[f"{what}_gap_beyond_random"]
        assert (beyond["value"], beyond["low"], beyond["high"]) == pytest.approx((-0.1, -0.1, -0.1))
        gaps = [row[f"{what}_sinks_high"] for row in rows]
        assert (found[f"{what}_sinks_gap"]["low"], found[f"{what}_sinks_gap"]["high"]) == pytest.approx(
            bootstrap(gaps, study.draws, study.seed)
        )
