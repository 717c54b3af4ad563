"""`sinkscope eval` from the command line: a score with its interval, and one sentence for bad input."""

from __future__ import annotations

import json
from pathlib import Path

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
    assert found["settings"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", " , "], "at least one task"),
        (["--tasks", "sinkscope_composition", "--pass-at", "one"], "whole numbers"),
        (["--tasks", "sinkscope_composition", "--set", "length"], "key=value"),
        (["--tasks", "nothing-of-the-kind"], "nothing-of-the-kind"),
        (["--tasks", "sinkscope_composition", "--mask-sinks", "-1"], "--mask-sinks"),
        (["--tasks", "sinkscope_composition", "--condition", "mask_sinks:k=1,rank=dirty"], "rank"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "--model", "tiny-llama", *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sinkscope: ")]
    assert len(said) == 1 and message in said[0]


def test_a_condition_is_named_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "eval",
        "--model",
        "tiny-llama",
        "--tasks",
        "sinkscope_composition",
        "-n",
        "2",
        "--set",
        "length=8",
        "--json",
    ]
    assert run([*words, "--condition", "mask_positions:positions=[0,1],since=second"]) == 0
    shown = capsys.readouterr()
    change = json.loads(shown.out)["condition"]
    assert (change["positions"], change["since"]) == ([0, 1], "second")
    assert "1 of 1 batches" in shown.err  # nobody watches: a line tells how far it is
    assert run([*words, "--condition", "mask_positions:positions=0"]) == 2
    assert run([*words, "--condition", "noop", "--mask-sinks", "1"]) == 2


def test_a_cache_is_a_condition_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "eval",
        "--model",
        "tiny-llada",
        "--tasks",
        "sinkscope_composition",
        "-n",
        "2",
        "--set",
        "length=16",
        "--json",
    ]
    assert run([*words, "--condition", "sparse_cache:keep=0.5,by=recent"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["condition"]["keep"] == 0.5


def test_a_prompt_is_shown_and_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": "How many?", "answer": "#### 3"}]
    (tmp_path / "gsm8k_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["eval", "--model", "tiny-llada", "--tasks", "gsm8k", "--data", str(tmp_path), "--show-prompt", "--no-chat"]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "Question: How many?\nAnswer:" in shown and "stop strings: ['Question:'" in shown
    assert run([*words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["turns"] == [{"role": "", "content": "Question: How many?\nAnswer:"}]
    assert found["protocol"] == "harness" and found["published"] == []
    assert run([*words, "--condition", "noop"]) == 2


def test_table_1_is_planned_from_config_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "table1", "--models", "tiny-llada,tiny-llama", "--device", "A100", "--ks", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in found["models"]] == ["tiny-llada", "tiny-llama"]
    assert found["hours"]
    assert all(row["seconds"] > 0 for row in found["models"])
    assert run(["plan", "table1", "--models", "tiny-llada", "--protocol", "paper", "-n", "50"]) == 0
    assert "tiny-llada" in capsys.readouterr().out
    assert run(["plan", "table1"]) == 2
    assert run(["plan", "quick", "--protocol", "paper"]) == 2
    assert run(["plan", "table1", "--models", "tiny-llada", "--protocol", "dream-authors"]) == 2
