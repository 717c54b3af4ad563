"""The readability check finds what it is for; `make lint` runs it over the docs."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = runpy.run_path(str(ROOT / "docs" / "readability.py"))


def test_docs_and_messages_are_plain() -> None:
    assert CHECK["findings"]() == []


def test_long_sentences_are_found_outside_of_code_and_tables() -> None:
    long = "one " * 31
    text = f"# Title\n\nShort. One {long.strip()}.\n\n```\n{long}\n```\n\n| {long} |\n\n- item one\n- {long}\n"
    found = [
        (line, CHECK["length"](sentence))
        for line, part in CHECK["prose"](text)
        for sentence in CHECK["sentences"](part)
        if CHECK["length"](sentence) > CHECK["LONGEST"]
    ]
    assert found == [(3, 32), (12, 31)]


def test_code_figures_and_links_are_no_words() -> None:
    sentence = CHECK["sentences"]("It costs −7.0 [−11.6, −3.6] points ([table](a/b.md)), see `a b c`.")[0]
    assert CHECK["length"](sentence) == 5
    assert CHECK["BANNED"].findall("Rows are drawn Anew; none is begun.") == ["Anew", "is begun"]


def test_docstrings_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "made.py"
    long = " ".join(["word"] * 31)
    module.write_text(
        f'"""One sentence: `code`. Another.\n\n    {long} in code\n\nA {long}."""\n\n\ndef f():\n    """No end\n    here."""\n'
    )
    monkeypatch.setitem(CHECK["docstrings"].__globals__, "ROOT", tmp_path)
    assert [found.split(":")[2].strip() for found in CHECK["docstrings"](module)] == [
        "more than one sentence in the first line", "32 words in one sentence", "the first line ends no sentence",
    ]  # fmt: skip
    module.write_text('"""One sentence, see Eq. 3."""\n\n\ndef f():\n    """Give x.\n\n    Its unit is points."""\n')
    assert list(CHECK["docstrings"](module)) == []


def test_before_and_after_are_real() -> None:
    """Ten paragraphs: the old text is in the commit that is named, the new one in the tree."""
    page = (ROOT / "docs" / "results" / "plain-words.md").read_text(encoding="utf-8")
    form = r"Before \(`(\S+)`, (\w+)\):\n\n```text\n(.*?)\n```\n\nAfter(?: \(`(\S+)`\))?:\n\n```text\n(.*?)\n```"
    found = re.findall(form, page, flags=re.S)
    assert len(found) == 10
    for path, commit, before, other, after in found:
        assert " ".join(after.split()) in " ".join((ROOT / (other or path)).read_text(encoding="utf-8").split()), after
        shown = subprocess.run(
            ["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if shown.returncode == 0:  # a shallow clone has no history
            assert " ".join(before.split()) in " ".join(shown.stdout.split()), before
