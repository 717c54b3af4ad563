"""Numbers, names and tables as text of 80 columns: shares in %, differences in points, intervals in brackets."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sinkscope import paper
from sinkscope.results.claims import STATEMENTS
from sinkscope.results.rows import Cell, Claim, ClaimVerdict, Difference, Dynamics, Interval, Results, TokenShare
from sinkscope.results.series import is_untouched, short_names
from sinkscope.statistics import CORRECTION

WIDTH = 80


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def changed(row: Difference) -> str:
    """A difference of accuracies with its interval, as -2.0 [-5.0, -0.1]."""
    return f"{points(row.difference)} [{points(row.difference_low)}, {points(row.difference_high)}]"


def nats(row: Difference) -> str:
    """A difference of log-likelihoods with its interval."""
    return f"{row.difference:+.2f} [{row.difference_low:+.2f}, {row.difference_high:+.2f}]"


def span(found: Interval, scale: float = 1.0) -> str:
    """A value with its interval, as +0.50 [+0.40, +0.60]."""
    return f"{scale * found.value:+.2f} [{scale * found.low:+.2f}, {scale * found.high:+.2f}]"


def chance(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def rule(row: Dynamics) -> str:
    """The sink rule that a row was made with."""
    return f"{row.rule} {row.epsilon:g} in {row.unit}" if row.epsilon is not None else row.rule


def cut(text: str, most: int) -> str:
    """At most so many characters; of a bracket at the end, which may be all that tells two labels apart, three stay."""
    if len(text) <= most:
        return text
    bracket = f"({text.rpartition(' (')[2][:3]})" if text.endswith(")") and " (" in text and most > 8 else ""
    return f"{text[: most - 1 - len(bracket)]}…{bracket}"


def title(*words: str) -> str:
    """What says anything of model, task and setting."""
    return " · ".join(word for word in words if word)


def paragraph(text: str, indent: int = 4) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2))


def aligned(rows: Sequence[Sequence[str]], indent: int = 2) -> Iterator[str]:
    """Names to the left, the other columns to the right; a name for which there is no room has lines of its own."""
    wide = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)][1:]
    room = min(WIDTH - indent - sum(wide), max(len(name) for name, *_ in rows))
    for name, *cells in rows:
        line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, wide, strict=True)).rstrip()
        if len(name) > room:
            yield from (f"{'':{indent}}{part}" for part in textwrap.wrap(name, WIDTH - indent))
        if line or len(name) <= room:
            yield f"{'':{indent}}{'' if len(name) > room else name:<{room}}{line}".rstrip()


# ---- the paper's claims by model as one matrix: claims down, models across, one mark per cell


MARKS: dict[ClaimVerdict, str] = {"supports": "+", "contradicts": "−", "undecided": "?", "no test": "·"}
SHORT = {name: one.short for name, one in STATEMENTS.items() if one.of_the_paper}
NAME_WIDTH = 22
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
    shown = models[: (width - NAME_WIDTH) // NARROW]
    wide = min(WIDE, (width - NAME_WIDTH) // len(shown))
    yield "The paper's claims by model: + supports, − contradicts, ? undecided, · no test."
    for line in zip(*column_heads(shown, wide - 1), strict=True):
        yield f"{'':<{NAME_WIDTH}}" + "".join(f"{part:^{wide}}" for part in line).rstrip()
    for name, short in SHORT.items():
        rows = [cells.get((name, model)) for model in shown]
        if any(rows):
            marks = ["" if row is None else MARKS[row.verdict] for row in rows]
            yield f"{short:<{NAME_WIDTH}}" + "".join(f"{mark:^{wide}}" for mark in marks).rstrip()
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


# ---- Tables 1 and 2 beside the paper's values, and every claim


SHOWN = 9  # epsilons of a curve
CLASSES = ("static", "moving", "flash", "split", "none")
Row = TypeVar("Row", bound=Any)


def write_tables(results: Results) -> str:
    """Table 1, Table 2 and every claim; parts for which there is nothing are left out."""
    made = table_1(results.cells), table_2(results.tokens, results.dynamics), claim_lines(results.claims)
    return "\n\n".join(part for part in map("\n".join, made) if part) + "\n"


def parts(rows: Sequence[Row], *names: str) -> list[list[Row]]:
    """Rows that have these fields in common, in order."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return list(found.values())


def table_1(cells: Sequence[Cell]) -> Iterator[str]:
    """Accuracy with its 95 % interval, one block per model and task, one line per condition."""
    if not cells:
        return
    yield from textwrap.wrap(
        "Table 1. Accuracy in % [95 % interval]; * differs from nothing masked, ° from as many random keys masked (exact "
        f"McNemar, 5 %; {CORRECTION} over K, and over all primary comparisons for those); its change in points, and per "
        "percent of attention taken; and the paper's accuracy.", WIDTH,
    )  # fmt: skip
    for mine in parts(cells, "model", "setting", "task"):
        none = next(cell for cell in mine if cell.condition["name"] == "none")
        names = short_names({cell.label: cell.condition for cell in mine}, none.causal)
        shown = [none, *(cell for cell in mine if not is_untouched(cell.condition))]
        yield ""
        yield from textwrap.wrap(f"{title(none.model, none.task, none.setting)} (n = {none.n})", WIDTH)
        if none.model in paper.STANDS_FOR and none.paper is not None:
            bench = paper.BENCHMARK_NAMES[paper.BENCHMARKS[none.task]]
            yield f"  paper: {paper.STANDS_FOR[none.model]} on {bench}"
        yield from aligned([(names[cell.label], *_accuracy(cell)) for cell in shown])


def _accuracy(cell: Cell) -> tuple[str, str, str, str]:
    """Accuracy with its interval and signs, change, change per percent, and the paper's."""
    p = cell.p_holm if cell.p_primary is None else cell.p_primary
    plain, control = cell.condition["name"] == "none", cell.controls.get("count")
    signs = ("*" if not plain and p < 0.05 else "") + ("°" if control and control.p_holm < 0.05 else "")
    return (
        f"{100 * cell.accuracy:.0f} [{100 * cell.low:.0f}–{100 * cell.high:.0f}]{signs:<2}",
        "" if plain else points(cell.difference),
        "" if cell.per_percent is None else f"{cell.per_percent:+.2f}/%",
        "" if cell.paper is None else f"{100 * cell.paper:.0f}",
    )


def table_2(tokens: Sequence[TokenShare], dynamics: Sequence[Dynamics], most: int = 5) -> Iterator[str]:
    """The tokens that are sinks most often, and how much oftener than they stand on the canvas; beside the paper's."""
    tokens = [row for row in tokens if row.condition == "none"]
    if not tokens:
        return
    by = f", {rule(dynamics[0])}" if dynamics else ""
    told = "Table 2. Share of the sinks that a token is [95 %], and how many times its share of the canvas that is; "
    yield from textwrap.wrap(f"{told}{tokens[0].generations} generations per model{by}.", WIDTH)
    for mine in parts(tokens, "model", "setting"):
        yield f"  {title(mine[0].model, mine[0].setting)}"
        times = ["" if row.enrichment is None else f"{row.enrichment:.1f} ×" for row in mine]
        yield from aligned([
            (cut(row.token, 20), row.kind, f"{row.share:.3f} [{row.low:.3f}, {row.high:.3f}]", more)
            for row, more in list(zip(mine, times, strict=True))[:most]
        ], 4)  # fmt: skip
        if theirs := paper.TABLE_2.get(paper.family(mine[0].model)):
            yield from paragraph("paper: " + ", ".join(f"{token} {share:.3f}" for token, share in theirs))


def claim_lines(rows: Sequence[Claim]) -> Iterator[str]:
    """Every claim with one paragraph per model, condition and definition."""
    if rows:
        yield f"Claims by model and condition; p is corrected ({CORRECTION}) over all claims."
    for name, statement in STATEMENTS.items():
        mine = [row for row in rows if row.name == name]
        yield from paragraph(statement.sentence, 0) if mine else []
        untested = [row for row in mine if row.verdict == "no test"]
        if untested:
            models = ", ".join(dict.fromkeys(row.model for row in untested))
            yield from paragraph(f"No test in {len(untested)} rows ({models}).")
        for row in (row for row in mine if row.verdict != "no test"):
            where = ", ".join(part for part in (row.condition.removeprefix("none"), row.definition) if part)
            dose = "" if row.dose is None else f", {percent(row.dose)} of the attention removed"
            control = f"Control: {write_control(row)}. " if row.control else ""
            chance = "" if row.p_holm is None else f", p {row.p_holm:.2g}"
            verdict = f"{row.model}{f' ({where})' if where else ''}: {row.verdict}."
            figure = f"{write_figure(row)}, n = {row.n}{chance}{dose}."
            yield from paragraph(f"{verdict} {figure} {control}")
    if rows:
        yield "Limits and reasons of each: sinkscope results RUN --table claims"


# ---- Table 1 of benchmarks

TITLES = "model | task | protocol | condition | n | accuracy | 95 % | difference | p | % removed | paper | published"
SHIFT_TITLES = "model | task | condition | tokens changed | first change | pairs reordered | changed, same verdict | KL"
SHIFTS = ("changed", "first_change", "reordered", "same_verdict", "kl")


def table1_markdown(cells: Sequence[Cell], run_with: Mapping[str, Any]) -> str:
    """Accuracies with their intervals and paired tests, the shift of the answers, and what all was run with."""
    parts = [markdown_table(TITLES, [_benchmark_row(cell) for cell in cells])]
    shifted = [cell for cell in cells if cell.shift is not None]
    if shifted:
        table = markdown_table(SHIFT_TITLES, [_shift_row(cell) for cell in shifted])
        parts.append(f"Answers against the unmasked run; in brackets the difference from random keys.\n\n{table}")
    parts.append(", ".join(f"{name} {value}" for name, value in run_with.items() if value is not None) + "\n")
    return "\n".join(parts)


def _benchmark_row(cell: Cell) -> list[object]:
    plain = cell.label == "none"
    change = (
        "" if plain else f"{points(cell.difference)} ({points(cell.difference_low)} … {points(cell.difference_high)})"
    )
    if cell.sequential is not None:
        change += f", {cell.sequential['decision']} ± {cell.sequential['margin']:g}"
    published = ", ".join(f"{one['score']:g} ({one['by']})" for one in cell.published or ())
    return [
        cell.model, cell.task, cell.protocol or "", cell.label, cell.n, f"{cell.accuracy:.3f}",
        f"{cell.low:.3f}–{cell.high:.3f}", change, "" if plain else f"{cell.p:.3g}",
        "" if cell.mass_share is None else f"{100 * cell.mass_share:.1f}",
        "" if cell.paper is None else f"{cell.paper:.2f}", published,
    ]  # fmt: skip


def _shift_row(cell: Cell) -> list[object]:
    assert cell.shift is not None
    less = cell.shift.get("minus_random") or {}
    values = [(cell.shift.get(name), less.get(name)) for name in SHIFTS]
    shown = ["–" if a is None else f"{a:.3f}" + ("" if b is None else f" ({b:+.3f})") for a, b in values]
    return [cell.model, cell.task, cell.label, *shown]


def markdown_table(titles: str, rows: Sequence[Sequence[object]]) -> str:
    """titles: with | between."""
    lines = [titles, *(" | ".join(map(str, row)) for row in rows)]
    head, *body = [f"| {line} |\n" for line in lines]
    return "".join([head, "|---" * len(titles.split("|")) + "|\n", *body])
