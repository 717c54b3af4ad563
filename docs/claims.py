"""The paper's claims by model in every committed run, as a page: written by docs/generate.py, compared by a test."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sinkscope.results import matrix
from sinkscope.results.rows import Claim, Results, read_results

RESULTS = Path(__file__).parent / "results"
PAGE = RESULTS / "claims.md"
ANSWER = Path(__file__).parent / "explanation" / "what-agrees.md"
MARKERS = ("<!-- claims: begin -->", "<!-- claims: end -->")
# The run that answers for a claim and a model is the first of these that has the cell.
MAIN = ("pair/one-by-one.json", "pair/pair.json", "paper/fair.json", "paper/strong.json", "paper/places.json")
MODELS = ("tiny-llama", "tiny-llada", "tiny-dream", "tiny-mmada", "smol-llama", "smol-dream")
INTRODUCTION = """# The paper's claims by model, in every committed run

+ supports, − contradicts, ? undecided, · no test. A cell shows the mark, the estimate and its 95 % interval.
[Reading claims](../how-to/reading-verdicts.md) tells how a cell is decided.
A model with few strong sinks cannot test what removing them does.
Terminal and report show the same cells. Run `sinkscope report RUN` for the condition, the control and the reason behind each.
"""


def committed() -> list[Path]:
    """Every committed results file, the main runs first."""
    main = [RESULTS / name for name in MAIN]
    others = [path for path in sorted(RESULTS.rglob("*.json")) if path not in main and _is_run(path)]
    return main + others


def _is_run(path: Path) -> bool:
    found = json.loads(path.read_text(encoding="utf-8"))
    return isinstance(found, dict) and {"schema", "cells", "run"} <= found.keys()


def read(path: Path) -> Results:
    """The results of a committed run, with claims judged from its rows where it is older than they are."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "results.json").symlink_to(path)
        found = read_results(Path(name))
    assert found is not None
    return found


def table(claims: Sequence[Claim]) -> Iterator[str]:
    """One run's matrix in Markdown."""
    cells, models = matrix.cells(claims), list(dict.fromkeys(row.model for row in claims))
    stands_for = {row.model: row.paper_model or "–" for row in claims}
    yield f"| claim | {' | '.join(models)} |"
    yield "|---" * (len(models) + 1) + "|"
    yield f"| stands for | {' | '.join(stands_for[model] for model in models)} |"
    for name, short in matrix.SHORT.items():
        rows = [cells.get((name, model)) for model in models]
        if any(rows):
            yield f"| {short} | {' | '.join(cell(row) if row else '' for row in rows)} |"


def cell(row: Claim) -> str:
    return f"{matrix.MARKS[row.verdict]} {matrix.figure(row)}"


def page() -> str:
    parts = [INTRODUCTION]
    for path in committed():
        claims = read(path).claims or []
        if claims:
            parts += [f"## {path.relative_to(RESULTS)}", "", matrix.counted(claims), "", *table(claims), ""]
    return "\n".join(parts)


def answers() -> dict[tuple[str, str], Claim]:
    """(claim, model) → the row of the main run that answers for it."""
    found: dict[tuple[str, str], Claim] = {}
    for name in MAIN:
        for place, row in matrix.cells(read(RESULTS / name).claims or []).items():
            found.setdefault(place, row)
    return found


def summary() -> str:
    """The one matrix over the main runs: claims down, models across, and how often each mark comes."""
    rows = answers()
    lines = [f"| claim | {' | '.join(MODELS)} | count |", "|---" * (len(MODELS) + 2) + "|"]
    for name, short in matrix.SHORT.items():
        marks = [matrix.MARKS[row.verdict] if (row := rows.get((name, model))) else "" for model in MODELS]
        count = Counter(row.verdict for (claim, _), row in rows.items() if claim == name)
        counted = ", ".join(f"{matrix.COUNTED[verdict]} {count[verdict]}" for verdict in matrix.MARKS if count[verdict])
        lines.append(f"| {short} | {' | '.join(marks)} | {counted} |")
    return "\n".join(lines)


def answer() -> str:
    """The explanation with its matrix as the runs have it now."""
    before, rest = ANSWER.read_text(encoding="utf-8").split(MARKERS[0])
    return f"{before}{MARKERS[0]}\n{summary()}\n{MARKERS[1]}{rest.split(MARKERS[1])[1]}"
