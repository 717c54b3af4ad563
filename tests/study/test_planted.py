"""The study of planted models recovers what was planted, and fails where it is told another truth."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import sinkscope as sk
from sinkscope.errors import StudyError


def test_all_planted_truths_are_recovered_and_swapped_ones_are_not(tmp_path: Path) -> None:
    study = sk.Study.load("planted")
    done = sk.run(study, out=tmp_path / "run", workers=1)
    assert done.unexpected(study) == []
    told = dict(study.expected)
    for one, other in (("planted-drain", "planted-carrier"), ("planted-moving", "planted-none")):
        swapped = dataclasses.replace(study, expected={**told, one: told[other], other: told[one]})
        assert {line.split()[0] for line in done.unexpected(swapped)} == {one, other}
    claims_are_as_planted(done.results)


def claims_are_as_planted(results: dict[str, Any]) -> None:
    assert results["schema"] == 2
    said = {(row["model"], row["name"]): row["value"] for row in results["verdicts"]}
    places = {row["model"]: row["because"] for row in results["claims"] if row["name"] == "sinks_move"}
    assert len(said) == len(results["verdicts"])
    assert said["planted-none", "sinks_exist"] == "contradicts" and said["planted-none", "one_sink"] == "supports"
    for model, moves, spares in (
        ("drain", "contradicts", "supports"), ("static", "contradicts", "supports"), ("moving", "supports", "supports"),
        ("carrier", "contradicts", "contradicts"),
    ):  # fmt: skip
        assert said[f"planted-{model}", "sinks_exist"] == "supports"
        assert (said[f"planted-{model}", "sinks_move"], said[f"planted-{model}", "one_sink"]) == (moves, spares)
        assert f"changes place in {100 if model == 'moving' else 0} %" in places[f"planted-{model}"]
    assert {cell["paper"] for cell in results["cells"]} == {None}  # they stand for no model of the paper


def test_expectations_of_a_model_that_is_not_there_are_refused() -> None:
    values = sk.Study.load("planted").to_dict()
    with pytest.raises(StudyError, match="expected"):
        sk.Study.from_dict({**values, "expected": {"tiny-llada": {"sinks": "static"}}})
