"""`sinkscope eval` from the command line: a score with its interval, and one sentence for bad input."""

from __future__ import annotations

import json

import pytest

from sinkscope.cli.app import run


def test_our_own_problems_through_the_harness(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "eval",
        "--model",
        "tiny-llama",
        "--tasks",
        "sinkscope_composition",
        "--problems",
        "4",
        "--set",
        "length=24",
    ]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (task,) = found["tasks"].values()
    assert task["n"] == 4
    (score, *_) = task["scores"].values()
    assert 0 <= score["low"] <= score["value"] <= score["high"] <= 1
    assert found["sinkscope"]["settings"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", " , "], "at least one task"),
        (["--tasks", "sinkscope_composition", "--pass-at", "one"], "whole numbers"),
        (["--tasks", "sinkscope_composition", "--set", "length"], "key=value"),
        (["--tasks", "nothing-of-the-kind"], "nothing-of-the-kind"),
        (["--tasks", "sinkscope_composition", "--mask-sinks", "-1"], "at least 0"),
        (["--tasks", "sinkscope_composition", "--mask-sinks", "1", "--rank", "dirty"], "rank"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "--model", "tiny-llama", *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sinkscope: ")]
    assert len(said) == 1 and message in said[0]
