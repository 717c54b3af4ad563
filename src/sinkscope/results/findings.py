"""The paper's three findings as a run has them, for an autoregressive and a diffusion model: terminal, page and README say these.

1. Both models have sinks. 2. While an answer is written, sinks stay in place or not. 3. What masking strong sinks changes.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sinkscope.conditions import Condition
from sinkscope.progress import clock
from sinkscope.results import series
from sinkscope.results.claim_tests import definition_of
from sinkscope.results.rows import Cell, Claim, Dynamics, LikelihoodChange, PooledCell, ResultRow, Results
from sinkscope.results.series import ModelRows, first_point, without_weak_tasks
from sinkscope.results.text import SHORT, WIDTH, aligned, cut, matrix_lines, nats, percent

Name = Literal["sinks", "movement", "masking"]
PAPER = {
    "sinks": "all models have sinks",
    "movement": "Llama's stay at the start, LLaDA's and Dream's move",
    "masking": "one masked sink takes Llama-3.1-8B from 85 to 2 % (GSM8K), Dream-7B from 82 to 79 %",
}
KEYS = ("strong sink", "last row's top key", "top key")  # the first that both models were run with
KEY_NAMES = {
    "strong sink": "strong sinks (> 0.3 of a head)",
    "last row's top key": "the most-attended key of each head",
    "top key": "the most-attended key of each head",
}
# Conditions of the same dose, or of the same number of keys: the first that was run is the control of a sentence.
CONTROLS = ("other keys, row-matched", "another")


@dataclass(frozen=True)
class Bar(ResultRow):
    """The accuracy of one model under one condition, for a picture."""

    model: str
    condition: str
    accuracy: float
    low: float
    high: float
    n: int
    dose: float | None
    key_share: float | None


@dataclass(frozen=True)
class Finding(ResultRow):
    """One sentence with its values, and what the paper reports of the same."""

    name: Name
    sentence: str
    paper: str
    bars: list[Bar]


def list_findings(results: Results) -> list[Finding]:
    """The findings that the run can state, in their order."""
    pair = select_pair(results)
    made = (_sinks(pair), _movement(pair), _masking(results, pair))
    return [one for one in made if one is not None]


def select_pair(results: Results) -> list[ModelRows]:
    """An autoregressive and a diffusion model: those with masked answers if there are any; one model if no second is there."""
    here = first_point(results)
    answered = list(dict.fromkeys(row.model for row in here.cells))
    traced = list(dict.fromkeys(row.model for row in here.dynamics))
    rows = [ModelRows(model, here.of(model), results.run.margin / 100) for model in dict.fromkeys([*answered, *traced])]
    causal = next((one for one in rows if one.causal), None)
    diffusion = next((one for one in rows if not one.causal), None)
    return [one for one in (causal, diffusion) if one is not None]


def _traced(of: ModelRows) -> Dynamics | None:
    """What its sinks do while the answer is written, by the first definition of the study."""
    rows = of.traced()
    return next((row for row in rows if row.part == "answer"), rows[0] if rows else None)


def _share(row: Dynamics, name: str) -> str | None:
    found = (row.intervals or {}).get(name)
    return None if found is None else f"{100 * found.value:.0f} % [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def _shares(pair: list[ModelRows], name: str) -> list[tuple[str, str, Dynamics]]:
    """Of each model its name, a share of its heads with the interval, and the row that it is from."""
    found = []
    for of in pair:
        row = _traced(of)
        share = None if row is None else _share(row, name)
        if row is not None and share is not None:
            found.append((of.model, share, row))
    return found


def _sinks(pair: list[ModelRows]) -> Finding | None:
    shares = _shares(pair, "with_sink")
    if not shares:
        return None
    row = shares[-1][2]
    models = ", ".join(f"{model} in {share} of its heads" for model, share, _ in shares)
    who = "Both models have sinks: " if len(shares) > 1 else "There are sinks: "
    sentence = f"{who}{models} ({definition_of(row)}, {row.generations} generations)."
    return Finding("sinks", sentence, PAPER["sinks"], [])


def _movement(pair: list[ModelRows]) -> Finding | None:
    shares = _shares(pair, "static")
    if not shares:
        return None
    when = "While an answer is written" if shares[0][2].part == "answer" else "Over the whole generation"
    (model, share, _), *others = shares
    more = "".join(f", and in {other} of {name}'s" for name, other, _ in others)
    sentence = f"{when}, the sink stays in place in {share} of {model}'s heads that have one{more}."
    return Finding("movement", sentence, PAPER["movement"], [])


def _masking(results: Results, pair: list[ModelRows]) -> Finding | None:
    key = next((key for key in KEYS if pair and all(of.cell(key) for of in pair)), None)
    if key is None:
        return None
    parts: list[str] = []
    bars: list[Bar] = []
    for of in pair:
        cell, plain = of.cell(key), of.untouched
        assert cell is not None and plain is not None
        parts.append(
            f"{of.model} {_counts(plain, cell)} of {cell.n} ({_change(cell, not parts)}{_open(cell, of.margin)})"
        )
        bars += [
            Bar(of.model, name, one.accuracy, one.low, one.high, one.n, one.mass_share, one.key_share)
            for name, one in {"nothing masked": plain, KEY_NAMES[key]: cell, **_control_cells(of)}.items()
        ]
    task = pair[0].untouched.task if pair[0].untouched else ""
    sentence = f"{task.capitalize()} without {KEY_NAMES[key]}: {'; '.join(parts)}. {_control_sentence(pair)}"
    return Finding("masking", sentence.strip(), PAPER["masking"], bars)


def _open(cell: Cell, margin: float) -> str:
    """That the interval contains both no change and a loss beyond the margin."""
    return ", undecided" if cell.difference_low <= -margin and cell.difference_high >= 0 else ""


def _counts(plain: Cell, cell: Cell) -> str:
    """How many are right, before and after."""
    if cell.correct == plain.correct:
        return f"stays at {cell.correct}"
    return f"{'falls' if cell.correct < plain.correct else 'rises'} from {plain.correct} to {cell.correct}"


def _change(cell: Cell, first: bool = False) -> str:
    """Change of accuracy with its interval, and its dose: −75 [−90, −41] points, 48 % of the attention removed."""
    dose = "" if cell.mass_share is None else f", {100 * cell.mass_share:.0f} %{' of the attention' * first} removed"
    return f"{_points(cell)}{' points' * first}{dose}"


def _points(cell: Cell) -> str:
    low, high = 100 * cell.difference_low, 100 * cell.difference_high
    return f"{100 * cell.difference:+.0f} [{low:+.0f}, {high:+.0f}]".replace("-", "−").replace("+0 ", "0 ")


def _control_cells(of: ModelRows) -> dict[str, Cell]:
    """Its controls of the same rows by their short names, in the order in which CONTROLS has them."""
    asked = [row for row in of.tables.cells if of.untouched and row.task == of.untouched.task]
    names = series.short_names({row.label: row.condition for row in asked}, of.causal)
    return {names[row.label]: row for control in CONTROLS for row in asked if names[row.label].startswith(control)}


def _control_sentence(pair: list[ModelRows]) -> str:
    """The control of the sentence: what the same does with another key, in both models."""
    cells = [(of, _control_cells(of)) for of in pair]
    if not cells or not all(found for _, found in cells):
        return "No control of the same rows was run."
    label = next(iter(cells[0][1]))
    changes = "; ".join(f"{of.model} {_change(next(iter(found.values())))}" for of, found in cells)
    return f"Control ({label}): {changes}."


# ---- what came out, in at most 25 lines


LINES = 25
SHOWN_MODELS = 2  # side by side in the table


def write_summary(results: Results, folder: Path | None = None, seconds: float | None = None) -> str:
    """At most 25 lines of 80 columns; the full tables have the rest."""
    findings = list_findings(results)
    head = [*_title(results, seconds), *_findings(findings)]
    tail = [*_controls(results), *_untested(results.claims), *_places(results, folder)]
    table = list(_table(results, LINES - len(head) - len(tail) - 1))
    if not findings and results.claims:
        table = list(matrix_lines(results.claims))
    return "\n".join([*head, *([""] if table else []), *table, *tail]) + "\n"


def _title(results: Results, seconds: float | None) -> Iterator[str]:
    run = results.run
    names = [str(model.get("name")) for model in run.models]
    took = "" if seconds is None else f" in {clock(seconds)} (m:ss)"
    yield cut(f"{run.study}: {', '.join(names)}; {run.units} units{took}.", WIDTH)


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for number, one in enumerate(findings, 1):
        yield from textwrap.wrap(f"{number}. {one.sentence}", WIDTH, subsequent_indent="   ")
    if findings:
        yield from textwrap.wrap(f"The paper: {'; '.join(one.paper for one in findings)}.", WIDTH)


def _table(results: Results, room: int) -> Iterator[str]:
    """A line per condition, two models side by side: accuracy or likelihood, and the attention removed."""
    scored = [row for row in results.likelihood if row.of == "answers" or not row.causal]
    of_texts = any(row.of == "texts" for row in scored)  # of models that answer no problems
    pooled = [] if of_texts else [without_weak_tasks(row) for row in first_point(results).pooled]
    rows: list[PooledCell | LikelihoodChange] = [*(pooled or scored)]
    changed = [row for row in rows if not series.is_untouched(row.condition)]
    changed.sort(key=lambda row: series.masked_key(row.condition) != ("strong sink", None))
    if not changed or room < 3:
        return
    models = _first_models(rows)
    values = {(row.label, row.model): _value(row) for row in rows}
    names = series.short_names({row.label: row.condition for row in changed}, any(row.causal for row in rows))
    plain = {"none": "nothing masked"} if pooled else {}
    lines = [
        (name, *(values.get((label, model), "–") for model in models)) for label, name in {**plain, **names}.items()
    ]
    if pooled:
        yield "Accuracy in % [change, 95 %], attention removed:"
    else:
        yield f"Nats per token of {'held-out text' if of_texts else 'true answers'}: change [95 %], attention removed:"
    shown = list(aligned([("", *(cut(model, 20) for model in models)), *lines]))
    if len(shown) > room - 1:
        shown = [*shown[: room - 2], f"  … and {len(shown) - room + 2} lines more"]
    yield from shown


def _first_models(rows: Sequence[PooledCell | LikelihoodChange]) -> list[str]:
    """The first autoregressive and the first diffusion model; the first two where there is one kind only."""
    kinds = {row.model: row.causal for row in rows}
    first = [next((model for model, causal in kinds.items() if causal is kind), None) for kind in (True, False)]
    both = [model for model in first if model is not None]
    return both if len(both) == SHOWN_MODELS else list(kinds)[:SHOWN_MODELS]


def _value(row: PooledCell | LikelihoodChange) -> str:
    removed = "" if row.mass_share is None or row.label == "none" else f"{percent(row.mass_share):>6}"
    if isinstance(row, PooledCell):
        change = f" [{100 * row.difference_low:+.0f},{100 * row.difference_high:+.0f}]"
        return f"{100 * row.accuracy:.0f}{'' if row.label == 'none' else change}{removed}"
    return f"{row.value:.2f}" if row.label == "none" else f"{nats(row)}{removed}"


def _controls(results: Results) -> Iterator[str]:
    noop = sum(cell.n for cell in results.cells if cell.condition["name"] == "noop")
    masked = [
        cell for cell in results.cells
        if cell.mass_share is not None and cell.condition["name"] != "noop"
        and Condition.from_dict(cell.condition).must_take_effect
    ]  # fmt: skip
    checks = [f"a no-op changed 0 of {noop} answers"] if noop else []
    checks += [f"masked keys received 0 in {len(masked)} cells"] if masked else []
    if checks:
        yield f"Checks: {'; '.join(checks)}."


def _untested(claims: Sequence[Claim]) -> Iterator[str]:
    yield from textwrap.wrap(untested_sentence(claims), WIDTH)


def untested_sentence(claims: Sequence[Claim]) -> str:
    """Claims of the paper that no model of the run was tested for, and the command that tests them; empty if there is none."""
    tested = {row.name for row in claims if row.verdict != "no test"}
    missing = [short for name, short in SHORT.items() if name not in tested]
    return f"Not tested here: {', '.join(missing)} (sinkscope study tiny)." if missing else ""


def _places(results: Results, folder: Path | None) -> Iterator[str]:
    if folder is None:
        return
    for line in (f"Page:   {activation()}sinkscope view {folder}", f"Tables: sinkscope report {folder} --text --full"):
        yield line if len(line) <= WIDTH else f"{line[:8]}{line[8:].replace(activation(), '')}"


def activation() -> str:
    """What comes before the first command, where this program is not on the PATH: its environment is activated."""
    script = Path(sys.executable).with_name("activate")
    if shutil.which("sinkscope") or not script.is_file():
        return ""
    here = Path.cwd()
    return f". {script.relative_to(here) if script.is_relative_to(here) else script} && "
