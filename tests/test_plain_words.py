"""Pages and help speak the field's words, one word one meaning; numbers have a unit or an n; links lead somewhere (mkdocs)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from sinkscope.cli.app import build

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    *sorted(path for part in ("start", "guides", "findings") for path in (ROOT / "docs" / part).glob("*.md")),
]
# What is banned → what to say.
BANNED = {
    r"\bdraws? (more|most|far|\d|less|as much)": "receives",
    r"\bdrawn? (by|to)\b": "received, sampled",
    r"\btop keys?\b": "most-attended key",
    r"(?<!row-matched )\bdoses?\b(?!–response)": "attention removed",
    r"\b(costs|pays|spares?)\b (it|the|both|neither|nothing|\d)": "lowers accuracy by",
    r"whatever (it|they)": "name it",
    r"\bis no (?!longer)(matched|control|test)": "is not a",
    r"\bnats a token\b": "nats per token",
    r"\bhardly matters?\b": "give the interval and the margin",
    r"dose for dose|cheapest": "the row-matched control",
    r"\bsees (every|all|its)\b": "attends to",
    r"\bneed not be\b|\bneed be\b": "do not need to",
    r"\b(14|\d+) points of (its|their) sums\b": "points of arithmetic accuracy",
    r"\bof its sums\b|\bsums of (it|them)\b": "arithmetic accuracy",
    r"\btwins? of\b": "pair, replication, reference",
    r"\b(key 0|first key)\b": "position 0",
}


def prose(path: Path) -> str:
    """A page without code, tables made from runs, and addresses."""
    text = re.sub(r"```.*?```|`[^`]*`", " ", path.read_text(encoding="utf-8"), flags=re.S)
    text = re.sub(r"<!-- (numbers|claims).*?<!-- (/numbers|claims: end) -->", " ", text, flags=re.S)
    return re.sub(r"\]\([^)]*\)", "]", text)


def found_in(text: str) -> list[str]:
    return [f"{match[0]!r}: {better}" for word, better in BANNED.items() for match in re.finditer(word, text, re.I)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_uses_the_words_of_the_field(path: Path) -> None:
    assert found_in(prose(path)) == []


def test_help_uses_the_words_of_the_field() -> None:
    group = typer.main.get_command(build())
    texts = {name: " ".join([command.help or "", *(getattr(one, "help", "") or "" for one in command.params)])
             for name, command in group.commands.items()}  # type: ignore[attr-defined]  # fmt: skip
    assert {name: wrong for name, text in texts.items() if (wrong := found_in(text))} == {}


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "findings").glob("*.md")), ids=lambda path: path.stem)
def test_a_finding_is_short_and_says_what_it_does_not_show(path: Path) -> None:
    if path.stem == "index":
        return
    text = path.read_text(encoding="utf-8")
    assert len(prose(path).split()) <= 900 and "## What it does not show" in text and text.count("# ") >= 3


def test_pages_do_not_repeat_each_other() -> None:
    """Fewer than 15 % of the runs of seven words of a page are on another one."""

    def runs(path: Path) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", prose(path).lower())
        return {tuple(words[place : place + 7]) for place in range(len(words) - 6)}

    every = {path: runs(path) for path in PAGES}
    for first in PAGES:
        for second in PAGES:
            if first < second and every[first] and every[second]:
                shared = len(every[first] & every[second]) / min(len(every[first]), len(every[second]))
                assert shared < 0.15 or {first.stem, second.stem} == {"README", "index"}, (
                    first.stem,
                    second.stem,
                    shared,
                )
