"""The paper's claims by model as one matrix: claims down, models across, one mark per cell; terminal, page and docs show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sinkscope.results.claims import STATEMENTS
from sinkscope.results.rows import Claim, ClaimVerdict
from sinkscope.results.text import WIDTH, cut

MARKS: dict[ClaimVerdict, str] = {"supports": "+", "contradicts": "−", "undecided": "?", "no test": "·"}
SHORT = {name: one.short for name, one in STATEMENTS.items() if one.of_the_paper}
NAME = 22
NARROW, WIDE = 7, 12  # columns of the matrix


def cells_of(claims: Sequence[Claim]) -> dict[tuple[str, str], Claim]:
    """(claim, model) → the row that its cell shows: of several conditions or definitions the first."""
    cells: dict[tuple[str, str], Claim] = {}
    for row in claims:
        cells.setdefault((row.name, row.model), row)
    return cells


def write_figure(row: Claim) -> str:
    """Estimate, interval and unit of a cell, as −7.0 [−11.6, −3.6] points."""
    return _write(row.estimate, row.low, row.high, row.unit)


def write_control(row: Claim) -> str:
    """The same of its control, with the attention that it removed."""
    control = row.control
    if control is None:
        return ""
    dose = "" if control.dose is None else f" ({100 * control.dose:.0f} % of the attention removed)"
    return f"{control.condition}, {_write(control.estimate, control.low, control.high, row.unit)}{dose}"


def _write(estimate: float, low: float, high: float, unit: str) -> str:
    form = ".0f" if unit.startswith("%") else "+.1f" if unit.startswith("points") else "+.2f"
    first, *ends = (f"{value:{form}}".replace("-", "−") for value in (estimate, low, high))
    return f"{first} [{', '.join(ends)}] {unit}"


def matrix_lines(claims: Sequence[Claim], width: int = WIDTH) -> Iterator[str]:
    """The matrix as text; models that do not fit are left out, and counted."""
    cells = cells_of(claims)
    models = list(dict.fromkeys(row.model for row in claims if row.name in SHORT))
    if not models:
        return
    shown = models[: (width - NAME) // NARROW]
    wide = min(WIDE, (width - NAME) // len(shown))
    yield "The paper's claims by model: + supports, − contradicts, ? undecided, · no test."
    for line in zip(*column_heads(shown, wide - 1), strict=True):
        yield f"{'':<{NAME}}" + "".join(f"{part:^{wide}}" for part in line).rstrip()
    for name, short in SHORT.items():
        rows = [cells.get((name, model)) for model in shown]
        if any(rows):
            marks = ["" if row is None else MARKS[row.verdict] for row in rows]
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
