"""Verdicts on right answers; the rules are stated in verdicts.py.

What masking costs, pooled and task by task, what the points of a sweep change, and at what price sinks are made weaker or
held still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sinkscope.statistics import CORRECTION, problems_needed
from sinkscope.study import vocabulary
from sinkscope.study.analysis.accuracy import WEAK
from sinkscope.study.results import Cell, Heads, PooledCell, SweepPoint, Tables
from sinkscope.study.text import chance, changed, left_out, percent, points

LEVEL = 0.05  # of p
FEWEST = 20  # problems below which a task says nothing
TOO_WEAK = "too weak to say"
LESS = 0.8  # of the attention on sinks
STILLER = 0.5  # of the heads with a moving sink
Found = Iterator[tuple[str, str, str, str]]  # name, value, one clause, and the sentences behind it


@dataclass(frozen=True)
class Decision:
    """What an interval says, and how many problems it would take where it says nothing."""

    said: Literal["robust", "dependent", "undecided"]
    needed: str = ""

    def __str__(self) -> str:
        return f"undecided ({self.needed})" if self.said == "undecided" else self.said


def decide(row: PooledCell, margin: float) -> Decision:
    """margin: in shares.

    Robust: the lower end is above −margin. Dependent: the upper end is below it.
    A primary comparison is dependent only if its p, corrected over all primary ones, says so too.
    """
    if row.difference_low > -margin:
        return Decision("robust")
    if row.difference_high < -margin and (row.p_primary is None or row.p_primary < LEVEL):
        return Decision("dependent")
    needed = problems_needed(row.lost, row.won, row.n, margin)
    if needed is None:
        return Decision("undecided", "the loss is about the margin")
    return Decision("undecided", f"needs about n = {max(needed, row.n + 1)} problems")


def solvable(row: PooledCell) -> PooledCell:
    """A pooled row over those tasks only that the model can do; as it is if it can do none."""
    return replace(row, **vars(row.able)) if row.able is not None else row


@dataclass(frozen=True)
class ModelRows:
    """All rows of one model (of a sweep: of its first point), and the margin, in shares."""

    tables: Tables
    margin: float

    @property
    def causal(self) -> bool:
        """Whether it writes from left to right."""
        return any(row.causal for row in self.tables.pooled) or any(row.causal for row in self.tables.likelihood)

    @property
    def base(self) -> PooledCell:
        return solvable(next(row for row in self.tables.pooled if row.condition["name"] == "none"))

    def masked(self, rank: str = "clean") -> list[PooledCell]:
        """Plainly masked sinks by K, over the tasks that the model can do; an ARM's by its last row where that was run."""
        rows = [row for row in self.tables.pooled if vocabulary.is_plain_masking(row.condition)]
        ranked = [solvable(row) for row in rows if row.condition["rank"] == rank]
        usual = vocabulary.usual_rows([row.condition for row in ranked], self.causal)
        return [row for row in ranked if row.condition["rows"] == usual]

    def find(self, *keys: vocabulary.Key) -> PooledCell | None:
        """The pooled row that masks the first of these keys that was run, over the tasks that the model can do."""
        found = {vocabulary.masked_key(row.condition): row for row in reversed(self.tables.pooled)}
        return next((solvable(found[key]) for key in keys if key in found), None)

    def heads(self, label: str = "none") -> Heads | None:
        """The heads under a condition; an ARM's by their columns so far."""
        return next((row.judged for row in self.tables.dynamics if row.condition == label), None)


def masking(of: ModelRows) -> Found:
    for rank in ("clean", "as_run"):
        if rows := of.masked(rank):
            base = of.base
            decided = {row.condition["k"]: decide(row, of.margin) for row in rows}
            value = TOO_WEAK if base.able is None else _robust(decided, rows)
            shown = next((row for row in rows if decided[row.condition["k"]].said != "robust"), rows[-1])
            told = " ".join(_masked(row, base.accuracy) for row in rows)
            clause = f"{changed(shown)} points at K={shown.condition['k']}, n = {shown.n}"
            last = rows[0].condition["rows"] == "last"  # of an ARM; other models have one way only
            ranked = "Ranked by its last row." if last else "Ranked by its columns; no ranking by its last row was run."
            yield f"masking_{rank}", value, clause, f"{_start(base)} {ranked + ' ' if rows[0].causal else ''}{told}"


def _robust(decided: Mapping[int, Decision], rows: Sequence[PooledCell]) -> str:
    """By the smallest K that is not robust; robust up to the one before it."""
    failing = [k for k, decision in decided.items() if decision.said != "robust"]
    held = [row for row in rows if not failing or row.condition["k"] < min(failing)]
    if not held:
        return str(decided[min(decided)])
    upto = f" up to K={max(row.condition['k'] for row in held)}" if failing else ""
    return f"robust{upto}" + ("" if all("count" in row.controls for row in held) else ", no control")


def _start(base: PooledCell) -> str:
    told = f"{100 * base.accuracy:.1f} % right with nothing masked (n = {base.n})"
    return f"{told}; no task reaches {percent(WEAK)}." if base.able is None else f"{told}.{left_out(base.weak)}"


def _masked(row: PooledCell, before: float) -> str:
    taken = "" if row.mass_share is None else f" ({percent(row.mass_share)} of attention taken)"
    lost = f", {percent(-row.difference / before)} of the right answers lost" if before and row.difference < 0 else ""
    words = f"K={row.condition['k']}: {changed(row)}{taken}{lost}, p {chance(row.p_holm)}"
    if "count" not in row.controls:
        words += "; no control with as many random keys"
    for match in ("count", "mass"):
        if control := row.controls.get(match):
            name = "as many random keys" if match == "count" else "random keys of the same mass"
            if match == "mass" and not vocabulary.comparable(row.mass_share, control.mass_share):
                name = f"random keys meant to match the mass (they took {percent(control.mass_share)})"
            words += f"; {name} {points(row.difference - control.difference)} (sinks against them {changed(control)})"
    return words + "."


def collapse(of: ModelRows) -> Found:
    """Of an ARM only: is what hiding the last row's top key costs about position 0?"""
    last, first, column = (of.find((key, None)) for key in ("last row's top key", "position 0", "top key"))
    random = of.find(("last row's top key", "count"), ("top key", "count"))
    if not of.causal or last is None or first is None or random is None:
        return
    told = (
        f"the last row's top key {changed(last)}, position 0 alone {changed(first)}, one random key {changed(random)}"
    )
    told += f", the column's top key {changed(column)}" if column else ""
    decision = decide(last, of.margin)
    if of.base.able is None:
        value = TOO_WEAK
    elif decision.said == "dependent":
        sinks = first.difference_high <= last.difference / 2 and random.difference_low > last.difference / 2
        value = "about sinks" if sinks else "not about sinks alone"
    else:
        value = "no collapse" if decision.said == "robust" else str(decision)
    clause = f"position 0 {points(first.difference)}, last row's top key {points(last.difference)} points"
    yield "collapse", value, clause, f"{_start(of.base)} Masked at every step after the first: {told}."


def tasks(of: ModelRows) -> Found:
    """Is the loss the same for every kind of task?

    Spread of the differences, beside what the intervals allow.
    """
    cells = of.tables.cells
    rows = [
        row for row in cells
        if vocabulary.is_plain_masking(row.condition) and (row.condition["rank"], row.condition["rows"]) == ("clean", "all")
    ]  # fmt: skip
    if len({row.task for row in rows}) < 3:
        return
    shares = {row.task: row.accuracy for row in cells if row.condition["name"] == "none"}
    weak = {task: share for task, share in shares.items() if share < WEAK}
    for k in sorted({row.condition["k"] for row in rows}):
        mine = [row for row in rows if row.condition["k"] == k and row.task not in weak]
        mine.sort(key=lambda row: row.difference)
        uncounted = {row.task: "" if row.n >= FEWEST else f" (n = {row.n}: not counted)" for row in mine}
        told = ", ".join(f"{row.task} {changed(row)}{uncounted[row.task]}" for row in mine) or "no task left"
        ends = [f"{row.task} {points(row.difference)}" for row in (mine[0], mine[-1])] if mine else []
        clause = f"{', '.join(ends)} points" if ends else "no task left"
        yield f"tasks_k{k}", _uneven(mine), clause, f"K={k}: {told}.{left_out(weak)}"


def _uneven(rows: Sequence[Cell]) -> str:
    """Of rows from the largest loss to the smallest."""
    if len(rows) < 2:
        return TOO_WEAK
    counted = [row for row in rows if row.n >= FEWEST]
    if len(counted) < 2:
        return "too few to say"
    apart = counted[0].difference_high < counted[-1].difference_low
    return "uneven" if apart else "even within the intervals"


def settings(of: ModelRows) -> Found:
    if rows := of.tables.settings:
        counted = [row.able for row in rows if row.able]
        moved = [row for row in counted if row.p_holm < LEVEL]
        value = f"{len(moved)} of {len(counted)} differ" if counted else TOO_WEAK
        clause = f"against {rows[0].against}, {CORRECTION} over {len(counted)} points"
        yield "settings", value, clause, f"Against {rows[0].against}: {', '.join(map(_point, rows))}."


def _point(row: SweepPoint) -> str:
    if not row.able:
        return f"{row.setting} {changed(row)} (no task reaches {percent(WEAK)} in either)"
    without = f", without {' and '.join(row.weak)} as too weak" if row.weak else ""
    return f"{row.setting} {changed(row.able)} (p {chance(row.able.p_holm)}{without})"


def control(of: ModelRows) -> Found:
    """Were sinks weaker, or still, under a condition that is meant to make them so, and at what price?"""
    yield from _price(of, "weaker", "weaken", lambda was, now: (now.absorption or 0.0) < LESS * (was.absorption or 0.0))
    yield from _price(of, "still", "hold", lambda was, now: now.moving < STILLER * was.moving)


def _price(of: ModelRows, name: str, aim: str, did: Callable[[Heads, Heads], bool]) -> Found:
    """Of the conditions with this aim whose answers and traces are both there."""
    before = of.heads()
    aimed = [solvable(row) for row in of.tables.pooled if vocabulary.aim(row.condition) == aim]
    found = [(row, now) for row in aimed if (now := of.heads(row.label)) is not None]
    if not found or before is None:
        return
    decided = {row.label: decide(row, of.margin).said for row, now in found if did(before, now)}
    free = [row for row, _ in found if decided.get(row.label) == "robust"]
    best = max(free or [row for row, _ in found if row.label in decided], key=lambda row: row.difference, default=None)
    if best is None:
        value, clause = "no", "no condition did it"
    elif free:
        value, clause = "free", f"{best.label}: {changed(best)} points"
    else:
        value = "at a price" if set(decided.values()) == {"dependent"} else "undecided"
        clause = f"the cheapest is {best.label}: {changed(best)} points"
    told = "; ".join(
        f"{row.label}{'' if row.label in decided else ' (does not count)'}: "
        f"attention on sinks {percent(before.absorption)} → {percent(now.absorption)}, "
        f"sinks per head {_number(before.sinks)} → {_number(now.sinks)}, "
        f"heads with a moving one {percent(before.moving)} → {percent(now.moving)}, answers {changed(row)}"
        for row, now in found
    )
    yield name, value, clause, f"Against sinks that draw {percent(before.absorption)} of the attention: {told}."


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
