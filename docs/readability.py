"""Is our English plain? Sentences of a length that is read once, and none of the words that we replaced.

    python docs/readability.py             # part of `make lint`; exit code 1 and a line per finding

Pages: every sentence outside of tables and code has at most LONGEST words, and every explanation at most TABLES tables.
Docstrings of src and lab: the same, and the first line is one sentence.
Pages, docstrings, messages and labels: none of WORDS, which stand here with what to write instead.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 30  # words; we aim at 25
TABLES = 3  # of an explanation
# Generated from docstrings, which are checked; prompts as models get them; a log, whose old entries stay; old text, quoted.
UNCHECKED = ("docs/reference/api.md", "docs/reference/cli.md", "docs/reference/protocols.md", "docs/notebook.md",
             "docs/results/plain-words.md")  # fmt: skip
# A sentence may begin with one of our names in lower case, or with a term that it defines.
NAMES = r"(?:tiny|smol|planted|sinkscope|torch|transformers)\b|[a-z_]+(?:, [a-z_0-9]+)*: |[a-z_]+="
ENDS = re.compile(rf'(?<=[.!?])[)”"]?\s+(?=[A-Z\[(“"0-9]|{NAMES})|(?<=:)\s+(?=[A-Z])')
WORDS = {
    "place and rights": "path and permissions",
    "has not the memory": "out of memory",
    "there twice": "duplicate key",
    "is begun": "an existing run, or: starts",
    "goes on from there": "rerun the command to resume",
    "goes on where": "is resumed",
    "goes on after": "is resumed",
    "with a word": "with a warning",
    "by being there": "imported automatically",
    "nats a token": "nats per token",
    "less sure": "lower confidence",
    "six lines": "Python",
    "where to go on": "Documentation",
    "rooms": "packages",
    "could not see": "Beyond the paper",
    "anew": "again",
    "hence": "so",
    "whence": "from which",
    "whoever": "anyone who",
    "thereof": "of it",
    "by turns": "alternating",
    "a row a": "one row per",
    "none came": "got none",
    "not of one checkpoint": "of different checkpoints",
    "walled in": "isolated",
    "taken home": "downloaded",
    "is there already": "is already registered",
    "dearer": "more expensive",
    "dearest": "most expensive",
}
BANNED = re.compile(rf"\b({'|'.join(map(re.escape, WORDS))})\b", re.I)


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """(line, paragraph or list item) of a page, without code blocks, tables, headings and front matter."""
    fenced, start, part = False, 0, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        fence = bare.startswith("```")
        fenced ^= fence
        breaks = fence or fenced or not bare or bare.startswith(("|", "#", "![", "---"))
        if (breaks or re.match(r"([-*]|\d+\.) ", bare)) and part:
            yield start, part
            part = ""
        if not breaks:
            start, part = (start, f"{part} {bare}") if part else (number, re.sub(r"^([-*]|\d+\.) ", "", bare))


def sentences(paragraph: str) -> list[str]:
    """Sentences of a paragraph; a colon or semicolon ends none, since the reader goes on."""
    plain = re.sub(r"`[^`]*`", "Code", paragraph)  # a sentence may begin with code
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain).replace("**", "").replace("*", "")
    plain = re.sub(r"\b(e\.g|i\.e|vs|Fig|Eq|No|pp|al)\.", r"\1", plain)
    return ENDS.split(plain)


def length(sentence: str) -> int:
    """Words; figures, signs and what stands in brackets behind them are no words."""
    return len(re.findall(r"[A-Za-z][A-Za-z’'-]*", re.sub(r"\[[^\]]*\]|\([^()]*\)", "", sentence)))


def long_sentences(page: Path) -> Iterator[str]:
    for line, paragraph in prose(page.read_text(encoding="utf-8")):
        for sentence in sentences(paragraph):
            if (words := length(sentence)) > LONGEST:
                yield f"{page.relative_to(ROOT)}:{line}: {words} words in one sentence: {sentence[:90].strip()} …"


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings whose first line is not one sentence, and their long sentences; indented lines and columns are code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not (text := ast.get_docstring(node)):
            continue
        where = f"{path.relative_to(ROOT)}:{node.body[0].lineno}"
        first = text.splitlines()[0]
        if not first.endswith((".", "!", "?", ":", "…")):
            yield f"{where}: the first line ends no sentence: {first[:90]} …"
        if re.search(
            r"[.!?] (?=[A-Z])", re.sub(r"`[^`]*`", "code", re.sub(r"\b(e\.g|i\.e|vs|Fig|Eq|al)\.", "", first))
        ):
            yield f"{where}: more than one sentence in the first line: {first[:90]} …"
        flush = "\n".join("" if re.search(r"^  |\S   +\S", line) else line for line in text.splitlines())
        for _, paragraph in prose(flush):
            for sentence in sentences(paragraph):
                if (words := length(sentence)) > LONGEST:
                    yield f"{where}: {words} words in one sentence: {sentence[:90].strip()} …"


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of a page's lines outside of code, of a module's string literals, or of a script's lines."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())


def banned(path: Path) -> Iterator[str]:
    for line, text in texts(path):
        for found in BANNED.findall(text):
            yield f"{path.relative_to(ROOT)}:{line}: write {WORDS[found.lower()]!r} for {found!r}"


def crowded(page: Path) -> Iterator[str]:
    """An explanation has at most three tables; more figures belong to docs/results."""
    tables = len(re.findall(r"^\|[ :|-]+\|$", page.read_text(encoding="utf-8"), flags=re.M))
    if page.parent.name == "explanation" and tables > TABLES:
        yield f"{page.relative_to(ROOT)}:1: {tables} tables, at most {TABLES}"


def findings() -> list[str]:
    checked = [page for page in pages() if not str(page.relative_to(ROOT)).startswith(UNCHECKED)]
    code = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "lab").rglob("*.py")])
    return [
        *(found for page in checked for found in (*long_sentences(page), *crowded(page), *banned(page))),
        *(found for path in [*code, *sorted((ROOT / "src").rglob("*.js"))] for found in banned(path)),
        *(found for path in code for found in docstrings(path)),
    ]


if __name__ == "__main__":
    found = findings()
    print("\n".join(found) or "Every sentence is short, and no word is on the list.")
    sys.exit(bool(found))
