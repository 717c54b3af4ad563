"""The paper's three findings as a run has them, for an autoregressive and a diffusion model: terminal, page and README say these.

1. Both models have sinks. 2. While an answer is written, sinks stay in place or not. 3. What masking strong sinks changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sinkscope.results import series
from sinkscope.results.claim_tests import definition_of
from sinkscope.results.model_rows import ModelRows, first_point
from sinkscope.results.rows import Cell, Dynamics, ResultRow, Results

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
