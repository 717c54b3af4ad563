"""The paper's claims by model as one matrix: claims down, models across, one mark per cell; terminal, page and docs show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from sinkscope.study.analysis.claims import CLAIMS
from sinkscope.study.results import Claim, ClaimVerdict
from sinkscope.study.text import WIDTH, cut

MARKS: dict[ClaimVerdict, str] = {"supports": "+", "contradicts": "−", "undecided": "?", "no test": "·"}
SHORT = {name: short for name, (short, _) in CLAIMS.items()}
COUNTED: dict[ClaimVerdict, str] = {
    "supports": "supported",
    "contradicts": "contradicted",
    "undecided": "undecided",
    "no test": "without a test",
}
NAME = 22
NARROW, WIDE = 7, 12  # columns of the matrix


def cells(claims: Sequence[Claim]) -> dict[tuple[str, str], Claim]:
    """(claim, model) → the row that its cell shows: of several conditions the first, which is the paper's own."""
    found: dict[tuple[str, str], Claim] = {}
    for row in claims:
        found.setdefault((row.name, row.model), row)
    return found


def figure(row: Claim) -> str:
    """Estimate, interval and unit of a cell, as −7.0 [−11.6, −3.6] points."""
    return _written(row.estimate, row.low, row.high, row.unit)


def control_figure(row: Claim) -> str:
    """The same of its control: random keys in place of the sinks."""
    found = row.control
    return "" if found is None else f"{found.condition}, {_written(found.estimate, found.low, found.high, row.unit)}"


def _written(estimate: float, low: float, high: float, unit: str) -> str:
    form = ".0f" if unit.startswith("%") else "+.1f" if unit.startswith("points") else "+.2f"
    first, *ends = (f"{value:{form}}".replace("-", "−") for value in (estimate, low, high))
    return f"{first} [{', '.join(ends)}] {unit}"


def counted(claims: Sequence[Claim]) -> str:
    """One sentence that counts the cells and judges nothing."""
    return f"The paper's claims are {counted_cells(claims)}"


def counted_cells(claims: Sequence[Claim]) -> str:
    """supported in 24 cells, contradicted in 15, undecided in 11, without a test in 16."""
    count = Counter(row.verdict for row in cells(claims).values())
    parts = [f"{word} in {count[verdict]}" for verdict, word in COUNTED.items() if count[verdict]]
    first, *rest = parts
    cell = "cell" if first.endswith(" in 1") else "cells"
    return ", ".join([f"{first} {cell}", *rest]) + "."


def lines(claims: Sequence[Claim], width: int = WIDTH) -> Iterator[str]:
    """The matrix as text; models that do not fit are left out, and counted."""
    if not claims:
        yield "The paper's claims were not judged in this run."
        return
    found = cells(claims)
    models = list(dict.fromkeys(row.model for row in claims))
    shown = models[: (width - NAME) // NARROW]
    wide = min(WIDE, (width - NAME) // len(shown))
    stands_for = {row.model: row.paper_model for row in claims}
    yield "The paper's claims by model: + supports, − contradicts, ? undecided, · no test."
    for line in zip(*column_heads(shown, wide - 1), strict=True):
        yield f"{'':<{NAME}}" + "".join(f"{part:^{wide}}" for part in line).rstrip()
    names = [str(stands_for[model] or "–").split("-")[0] for model in shown]
    yield f"{'stands for':<{NAME}}" + "".join(f"{cut(name, wide - 1):^{wide}}" for name in names).rstrip()
    for name, short in SHORT.items():
        marks = [MARKS[row.verdict] if (row := found.get((name, model))) else "" for model in shown]
        if any(marks):
            yield f"{short:<{NAME}}" + "".join(f"{mark:^{wide}}" for mark in marks).rstrip()
    if len(models) > len(shown):
        yield f"… and {len(models) - len(shown)} models more"


def column_heads(models: Sequence[str], room: int) -> list[tuple[str, str]]:
    """Each model's name on two lines of a narrow column; names that look alike once they are cut end in their number."""
    split = [model.rpartition("/")[2].partition("-") for model in models]
    heads = [(cut(first + dash, room), cut(rest, room)) for first, dash, rest in split]
    return [
        (first, f"{rest[: room - 1 - len(str(place))]}#{place}" if heads.count((first, rest)) > 1 else rest)
        for place, (first, rest) in enumerate(heads, 1)
    ]
