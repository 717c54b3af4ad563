"""The help is in the order of use, and each of its examples is a line that works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sinkscope.cli.app import LOOK, MEASURE, PREPARE, build, run

ORDER = {
    LOOK: ["generate", "trace", "sinks", "report", "view"],
    MEASURE: ["study", "merge", "compare", "eval", "table1"],
    PREPARE: ["plan", "models", "check", "bench"],
}
COMMANDS = {str(one.name): one for one in build().registered_commands}
EXAMPLES = {name: str(one.epilog).removeprefix("Example: ") for name, one in COMMANDS.items()}


def test_commands_stand_in_groups_in_the_order_of_use() -> None:
    assert list(dict.fromkeys(one.rich_help_panel for one in COMMANDS.values())) == list(ORDER)
    for group, names in ORDER.items():
        own = [name for name, one in COMMANDS.items() if one.rich_help_panel == group]
        assert [name for name in own if name in names] == names


def test_every_command_has_one_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"─ {group} ─") for group in ORDER]
    assert places == sorted(places)
    for name, example in EXAMPLES.items():
        assert example in shown and example.startswith(f"sinkscope {name}") and len(example) <= 64


def test_examples_of_a_trace_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("models", "generate", "trace", "sinks", "report", "figures", "plan"):
        program, *words = shlex.split(EXAMPLES[name])
        assert program == "sinkscope" and run(words) == 0
