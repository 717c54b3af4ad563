"""The study of planted models recovers what was planted, and fails where it is told another truth."""

from __future__ import annotations

import dataclasses
from pathlib import Path

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


def test_expectations_of_a_model_that_is_not_there_are_refused() -> None:
    values = sk.Study.load("planted").to_dict()
    with pytest.raises(StudyError, match="expected"):
        sk.Study.from_dict({**values, "expected": {"tiny-llada": {"sinks": "static"}}})
