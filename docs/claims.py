"""The paper's claims by model over all committed runs, as one page and one matrix: docs/generate.py writes both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from sinkscope.results import text
from sinkscope.results.rows import Claim, need_results

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parent / "reference" / "claims.md"
ANSWER = Path(__file__).parent / "findings" / "index.md"
MARKERS = ("<!-- claims: begin -->", "<!-- claims: end -->")
# The run that answers for a claim and a model is the one that tests it with the most problems or generations; of equals the
# first of these. If none tests it, the same among those that have it.
RUNS = (
    "paper/paper", "pair/two-by-two-arm", "pair/two-by-two-dlm", "pair/one-by-one", "pair/pair", "paper/fair",
    "paper/strong", "paper/places", "block_causal/whole", "block_causal/matched", "nemotron/both-modes",
    "nemotron/matched", "paper/tiny",
)  # fmt: skip
INTRODUCTION = """# The paper's claims by model

+ supports, − contradicts, ? undecided, · no test: fewer than 20 traced generations, or the model lacks what the claim is about.
A cell has the mark, the estimate with its 95 % interval, n, and the number of the run that answers it:
the one with the most problems or generations.
[Read results](../guides/read-results.md) explains how a cell is decided; `sinkscope report RUN` shows control and reason.
"""


@cache
def answers() -> dict[tuple[str, str], tuple[Claim, str]]:
    """(claim, model) → the row that answers for it, and its run."""
    found: dict[tuple[str, str], tuple[Claim, str]] = {}
    for run in RUNS:
        for place, row in text.cells_of(need_results(RESULTS / run).claims).items():
            if place not in found or weight(row) > weight(found[place][0]):
                found[place] = row, run
    return found


def weight(row: Claim) -> tuple[bool, int]:
    """How much a run has to say on a claim."""
    return row.verdict != "no test", row.n


def models() -> list[str]:
    return list(dict.fromkeys(model for _, model in answers()))


def page() -> str:
    """Every cell with its figure and its run."""
    runs = "\n".join(f"{number}. `results/{name}`" for number, name in enumerate(RUNS, 1))
    return "\n".join([INTRODUCTION, *_table(_cell), "", "Runs:", "", runs])


def matrix_table() -> str:
    """The marks alone."""
    return "\n".join(_table(lambda row, run: text.MARKS[row.verdict]))


def _table(write: Callable[[Claim, str], str]) -> Iterator[str]:
    found, columns = answers(), models()
    yield f"| claim | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, short in text.SHORT.items():
        cells = [write(*found[name, model]) if (name, model) in found else "" for model in columns]
        if any(cells):
            yield f"| {short} | {' | '.join(cells)} |"


def _cell(row: Claim, run: str) -> str:
    mark = text.MARKS[row.verdict]
    return f"{mark} {text.write_figure(row)}, n = {row.n} ({RUNS.index(run) + 1})"


def answer() -> str:
    """The page on what agrees, with the matrix as the runs have it now."""
    before, rest = ANSWER.read_text(encoding="utf-8").split(MARKERS[0])
    return f"{before}{MARKERS[0]}\n{matrix_table()}\n{MARKERS[1]}{rest.split(MARKERS[1])[1]}"
