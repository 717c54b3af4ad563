"""The paper's claims by model as one matrix: claims down, models across, one mark per cell. Terminal, page and docs show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from sinkscope.study.results import Claim

MARKS = {"supports": "+", "contradicts": "−", "undecided": "?", "no test": "·"}
# Claims in a few words, in the order of the matrix.
SHORT = {
    "sinks_exist": "has sinks",
    "sinks_move": "sinks move",
    "sinks_stand": "sinks stand still",
    "sink_at_start": "sink at the start",
    "strong_sink": "spares strong sinks",
    "one_sink": "spares its top keys",
    "arm_sink": "needs its sink",
    "structural": "sinks structural",
    "threshold_sum": "ε = 3: 96 % out, sum",
    "threshold_percent": "ε = 3: 96 % out, %",
    "deeper_fewer": "deeper: fewer",
    "deeper_stronger": "deeper: stronger",
    "confidence": "confidence falls",
    "later": "commits come later",
}
NAME, CELL, WIDTH = 22, 7, 80


def cells(claims: Sequence[Claim]) -> dict[tuple[str, str], Claim]:
    """(claim, model) → the row that its cell shows: of several conditions the first, which is the paper's own."""
    found: dict[tuple[str, str], Claim] = {}
    for row in claims:
        found.setdefault((row.name, row.model), row)
    return found


def figure(row: Claim) -> str:
    """−7.0 [−11.6, −3.6] points"""
    places, sign = (1, "+") if row.unit in ("points", "points of share") else (2, "+")
    if row.unit.startswith("%"):
        places, sign = 0, ""
    numbers = (f"{value:{sign}.{places}f}" for value in (row.estimate, row.low, row.high))
    value, low, high = numbers
    return f"{value} [{low}, {high}] {row.unit}".replace("-", "−")


def counted(claims: Sequence[Claim]) -> str:
    """One sentence that counts the cells and judges nothing."""
    count = Counter(row.verdict for row in cells(claims).values())
    tests = sum(count.values()) - count["no test"]
    return (
        f"Of {tests} tests of the paper's claims, {count['supports']} support it, {count['contradicts']} contradict it and "
        f"{count['undecided']} are undecided; {count['no test']} more are no test."
    )


def lines(claims: Sequence[Claim], width: int = WIDTH) -> Iterator[str]:
    """The matrix as text; models that do not fit are left out, and counted."""
    if not claims:
        yield "The paper's claims were not judged in this run."
        return
    found = cells(claims)
    models = list(dict.fromkeys(row.model for row in claims))
    shown = models[: (width - NAME) // CELL]
    stands_for = {row.model: row.paper_model for row in claims}
    yield "The paper's claims by model: + supports, − contradicts, ? undecided, · no test."
    for part in (0, 1):
        yield f"{'':<{NAME}}" + "".join(f"{_halves(model)[part]:^{CELL}}" for model in shown).rstrip()
    names = [str(stands_for[model] or "–").split("-")[0] for model in shown]
    yield f"{'stands for':<{NAME}}" + "".join(f"{name:^{CELL}}" for name in names).rstrip()
    for name, short in SHORT.items():
        marks = [MARKS[row.verdict] if (row := found.get((name, model))) else "" for model in shown]
        if any(marks):
            yield f"{short:<{NAME}}" + "".join(f"{mark:^{CELL}}" for mark in marks).rstrip()
    if len(models) > len(shown):
        yield f"… and {len(models) - len(shown)} models more"


def _halves(model: str) -> tuple[str, str]:
    """A model's name on two lines of a narrow column."""
    first, dash, rest = model.partition("-")
    return (first + dash)[: CELL - 1], rest[: CELL - 1]
