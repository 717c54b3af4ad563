"""Verdicts on control: were sinks weaker, or still, under a condition that is meant to make them so, and at what price?

weaker      a condition counts where sinks draw less than 80 % of the attention that they drew before; free: one of those
            is robust; at a price: all are dependent; undecided otherwise; no: none counts
still       the same of conditions that hold sinks, which count where fewer than half as many heads have a moving one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sinkscope.study.analysis.decisions import Decision, able, decide
from sinkscope.study.analysis.losses import Found, Model
from sinkscope.study.analysis.rows import PooledCell
from sinkscope.study.analysis.rows_traced import Dynamics, Heads
from sinkscope.study.analysis.wording import changed, percent

WEAKEN = ("soften", "penalise_sinks", "off_by_one", "add_sink_token")
HOLD = ("hold_sinks",)
LESS = 0.8  # of the attention on sinks
STILLER = 0.5  # of the heads with a moving sink


def control(of: Model) -> Found:
    yield from _judged(
        of, "weaker", WEAKEN, lambda before, now: (now.absorption or 0.0) < LESS * (before.absorption or 0.0)
    )
    yield from _judged(of, "still", HOLD, lambda before, now: now.moving < STILLER * before.moving)


def _judged(of: Model, name: str, conditions: Sequence[str], did: Callable[[Heads, Heads], bool]) -> Found:
    found = list(_paired(of, conditions))
    before = _heads(of, "none")
    if not found or before is None:
        return
    decided = [(row, decide(row, of.margin, row.p_primary)) for row, now in found if did(before, now)]
    told = "; ".join(_told(row, before, now, did(before, now)) for row, now in found)
    value, clause = _value(decided)
    yield name, value, clause, f"Against sinks that draw {percent(before.absorption)} of the attention: {told}."


def _value(decided: Sequence[tuple[PooledCell, Decision]]) -> tuple[str, str]:
    if not decided:
        return "no", "no condition did it"
    free = [row for row, decision in decided if decision.said == "robust"]
    if free:
        best = max(free, key=lambda row: row.difference)
        return "free", f"{best.label}: {changed(best)} points"
    cheapest = max((row for row, _ in decided), key=lambda row: row.difference)
    value = "at a price" if all(decision.said == "dependent" for _, decision in decided) else "undecided"
    return value, f"the cheapest is {cheapest.label}: {changed(cheapest)} points"


def _paired(of: Model, conditions: Sequence[str]) -> Iterator[tuple[PooledCell, Heads]]:
    """Conditions whose answers and traces are both there."""
    for row in of.pooled:
        heads = _heads(of, row.label) if row.condition["name"] in conditions else None
        if heads is not None:
            yield able(row), heads


def _heads(of: Model, label: str) -> Heads | None:
    """The heads under a condition; an ARM's by their columns so far."""
    rows: list[Dynamics] = of.rows("dynamics")
    row = next((row for row in rows if row.condition == label), None)
    return None if row is None else row.columns or row


def _told(row: PooledCell, before: Heads, now: Heads, counts: bool) -> str:
    def change(name: str, words: Callable[[Any], str]) -> str:
        return f"{words(getattr(before, name))} → {words(getattr(now, name))}"

    return (
        f"{row.label}{'' if counts else ' (does not count)'}: attention on sinks {change('absorption', percent)}, sinks per "
        f"head {change('sinks', _number)}, heads with a moving one {change('moving', percent)}, answers {changed(row)}"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
