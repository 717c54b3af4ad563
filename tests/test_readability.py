"""The readability check finds what it is for; `make lint` runs it over the docs."""

from __future__ import annotations

import runpy
from pathlib import Path

CHECK = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "readability.py"))


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
