"""Every committed run is a folder that opens, and the study file in it is the study of its results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkscope.study.run import Run
from sinkscope.study.schema import Study

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "results").rglob("*.yaml"), *(ROOT / "lab" / "results").rglob("*.yaml")])
RUNS = [path for path in FILES if path.name == "study.yaml" and path.with_name("results.json").is_file()]


def name_of(path: Path) -> str:
    return path.parent.name if path.name == "study.yaml" else path.stem


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_committed_study_file_says_how_it_was_run(path: Path) -> None:
    asked = f"{path.relative_to(ROOT)} -o runs/"
    commands = [
        f"sinkscope study {asked}",
        f"python -m lab.experiments.directions {asked}",
    ]  # a family of the laboratory's
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(command in line for command in commands for line in lines)
    assert Study.from_dict(Study.load(path).to_dict()) == Study.load(path)


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_a_committed_run_opens_and_its_study_file_is_the_study_of_its_results(path: Path) -> None:
    study, results = Study.load(path), Run.load(path.parent).results
    assert results["run"]["study"] == study.name and results["run"]["conditions"] == len(study.conditions)
    assert {cell["label"] for cell in results["cells"]} == {condition.label for condition in study.conditions}
    assert {(cell["task"], cell["n"]) for cell in results["cells"]} == {(one.name, one.problems) for one in study.tasks}


def test_they_are_there() -> None:
    names = {name_of(path) for path in FILES}
    assert {"fair", "strong", "orders", "left-to-right", "paths", "seeds", "two-by-two-arm"} <= names
    assert len(RUNS) >= 12
    for path in RUNS:
        assert json.loads(path.with_name("results.json").read_text(encoding="utf-8"))["schema"]
