"""The help is in the order of use, and each of its examples is a line that works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sinkscope.cli.app import COMMANDS, EXAMPLES, LOOK, MEASURE, PREPARE, build, run

ORDER = {
    LOOK: ["trace", "sinks", "view", "report"],
    MEASURE: ["study", "table1", "eval", "compare"],
    PREPARE: ["models", "check", "plan", "bench"],
}


def test_commands_stand_in_groups_in_the_order_of_use() -> None:
    groups = {group: [name for name, (_, own) in COMMANDS.items() if own == group] for group in ORDER}
    assert list(dict.fromkeys(group for _, group in COMMANDS.values())) == list(ORDER)
    for group, names in ORDER.items():
        assert [name for name in groups[group] if name in names] == names


def test_every_command_has_one_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"─ {group} ─") for group in ORDER]
    assert places == sorted(places)
    assert set(EXAMPLES) == set(COMMANDS) == {str(one.name) for one in build().registered_commands}
    for example in EXAMPLES.values():
        assert example in shown and len(example) <= 64


def test_examples_of_a_trace_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("models", "generate", "trace", "sinks", "report", "figures", "plan"):
        program, *words = shlex.split(EXAMPLES[name])
        assert program == "sinkscope" and run(words) == 0
