"""Study files that stand beside committed results are commands that still work."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.study.schema import Study

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FILES = sorted(RESULTS.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_committed_study_file_is_read_and_says_how_it_was_run(path: Path) -> None:
    study = Study.load(path)
    assert study.name and study.about
    command = f"sinkscope study {path.relative_to(RESULTS.parents[1])} -o runs/"
    assert any(line.startswith("#") and command in line for line in path.read_text(encoding="utf-8").splitlines())


def test_they_are_there() -> None:
    assert {"fair", "strong", "large", "orders", "left-to-right", "paths", "seeds"} <= {path.stem for path in FILES}
