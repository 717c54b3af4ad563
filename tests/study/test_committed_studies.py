"""Study files that stand beside committed results are the studies of those results, and commands that still work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkscope.study.schema import Study

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FILES = sorted(RESULTS.rglob("*.yaml"))


def results_beside(path: Path) -> Path | None:
    """x.json or x.results.json beside x.yaml or x.study.yaml, where that holds the results of a run."""
    name = path.name.removesuffix(".yaml").removesuffix(".study")
    found = [path.with_name(f"{name}{ending}") for ending in (".json", ".results.json")]
    return next((one for one in found if one.is_file() and '"cells"' in one.read_text(encoding="utf-8")), None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_committed_study_file_says_how_it_was_run(path: Path) -> None:
    asked = f"{path.relative_to(RESULTS.parents[1])} -o runs/"
    commands = [
        f"sinkscope study {asked}",
        f"python -m lab.experiments.directions {asked}",
    ]  # a family of the laboratory's
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(command in line for command in commands for line in lines)
    assert Study.from_dict(Study.load(path).to_dict()) == Study.load(path)


@pytest.mark.parametrize("path", [path for path in FILES if results_beside(path)], ids=lambda path: path.stem)
def test_a_committed_study_file_is_the_study_of_the_results_beside_it(path: Path) -> None:
    study, beside = Study.load(path), results_beside(path)
    assert beside is not None
    results = json.loads(beside.read_text(encoding="utf-8"))
    assert results["run"]["study"] == study.name and results["run"]["conditions"] == len(study.conditions)
    assert {cell["label"] for cell in results["cells"]} == {condition.label for condition in study.conditions}
    assert {(cell["task"], cell["n"]) for cell in results["cells"]} == {(one.name, one.problems) for one in study.tasks}


def test_they_are_there() -> None:
    assert {"fair", "strong", "large", "orders", "left-to-right", "paths", "seeds"} <= {path.stem for path in FILES}
    assert sum(results_beside(path) is not None for path in FILES) >= 12
