"""Commands in the README and the docs exist, and take the options that stand there. Long ones are parsed, not run."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import typer

from sinkscope.cli.app import build
from sinkscope.cli.app import run as command
from sinkscope.cli.options import ALIASES
from sinkscope.study.schema import Study, shipped

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
START = re.compile(r"^(?:\$ )?((?:sinkscope|python -m|make) .*)$")
PLACEHOLDER = re.compile(r"^[A-Z][A-Z_]*$|…|^\.\.\.$|[<>{}*|]")


def commands(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = [line for block in re.findall(r"```(?:\w*)\n(.*?)```", text, flags=re.S) for line in block.splitlines()]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    found = [match[1] for line in [*fenced, *spans] if (match := START.match(line.strip()))]
    # One command per line: what stands behind it is a comment, another command, or the rest of a printed sentence.
    return [re.split(r"\s#|;|&&|\s\|\s|, with", one)[0].strip() for one in found]


EVERY = sorted({one for page in PAGES for one in commands(page)})


def test_there_are_commands_to_check() -> None:
    assert len(EVERY) > 60
    assert {one.split()[0] for one in EVERY} == {"sinkscope", "python", "make"}


@pytest.mark.parametrize("line", [one for one in EVERY if one.startswith("sinkscope ")])
def test_the_command_line_takes_it(line: str) -> None:
    name, *words = shlex.split(line)[1:]
    name, rest = (
        name.strip(",:"),
        [f"--{ALIASES.get(word[2:], word[2:])}" if word.startswith("--") else word for word in words],
    )
    if name.startswith("-"):
        return  # of the whole program: run below
    group = typer.main.get_command(build())
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    assert name in group.commands or PLACEHOLDER.search(name), line  # type: ignore[attr-defined]
    if name not in group.commands or not rest or any(PLACEHOLDER.search(word) for word in rest):  # type: ignore[attr-defined]
        options = {opt for one in group.commands[name].params for opt in (*one.opts, *one.secondary_opts)}  # type: ignore[attr-defined]
        assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= options, line
        return
    with suppress(click.exceptions.MissingParameter):  # some of its options are named, and nothing else
        group.commands[name].make_context(name, list(rest))  # type: ignore[attr-defined]
    if name == "study" and not rest[0].startswith("-") and rest[0] not in shipped() and "/" in rest[0]:
        assert Study.load(str(ROOT / rest[0]))


@pytest.mark.parametrize("line", [one for one in EVERY if one.startswith("python -m ")])
def test_the_module_exists(line: str) -> None:
    module = shlex.split(line)[2]
    assert find_spec(module) is not None, line


@pytest.mark.parametrize("line", [one for one in EVERY if one.startswith("make ")])
def test_the_target_exists(line: str) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    assert line.split()[1].strip(".,") in targets, line


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--help"]) == 0
    assert "attention sinks in diffusion language models" in " ".join(capsys.readouterr().out.split())
