"""Conditions whose labels hold more than one number run to the end of a study."""

from __future__ import annotations

from pathlib import Path

import sinkscope as sk
from sinkscope.study.run import run


def test_a_cut_for_a_part_of_the_generation_runs_to_its_end(tmp_path: Path) -> None:
    entry = {"name": "cut", "start": 0.25, "stop": 0.75, "steps": [0.0, 0.5]}
    study = sk.Study.from_dict({
        "name": "cut-early", "models": ["tiny-llada"], "tasks": [{"name": "arithmetic", "problems": 2}],
        "decode": {"length": 8, "steps": 4, "block": 8}, "conditions": ["none", "noop", entry],
        "trace": {"problems": 1, "conditions": ["none", entry]}, "draws": 100,
    })  # fmt: skip
    assert sk.Study.from_dict(study.to_dict()) == study
    results = run(study, tmp_path, workers=1).rows
    (cell,) = [cell for cell in results.cells if cell.condition["name"] == "cut"]
    assert cell.condition == {
        "name": "cut",
        "k": 0,
        "rank": None,
        "rows": None,
        "start": 0.25,
        "stop": 0.75,
        "steps": [0.0, 0.5],
    }
    assert cell.label == "cut 0.25–0.75 steps 0%–50%" and cell.mass_share > 0
    assert {row.condition for row in results.dynamics} == {"none", cell.label}
