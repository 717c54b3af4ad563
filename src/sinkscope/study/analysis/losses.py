"""Verdicts on right answers: what masking costs, pooled and task by task, and what the points of a sweep change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.study.analysis.accuracy import WEAK
from sinkscope.study.analysis.decisions import LEVEL, Decision, able, decide, plain
from sinkscope.study.analysis.rows import Cell, PooledCell, Setting
from sinkscope.study.analysis.wording import chance, changed, left_out, percent, points, span

MATCHED = 0.25  # how far, relatively, the mass of a control may be from that of the sinks
ENOUGH = 20  # problems below which a task says nothing
TOO_WEAK = "too weak to say"
Found = Iterator[tuple[str, str, str, str]]  # name, value, one clause, and the sentences behind it


@dataclass(frozen=True)
class Model:
    """All rows of one model (of a sweep: of its first point), and the margin, in shares."""

    name: str
    tables: Mapping[str, Sequence[Any]]
    margin: float

    def rows(self, table: str) -> list[Any]:
        return list(self.tables.get(table, ()))

    @property
    def pooled(self) -> list[PooledCell]:
        return self.rows("pooled")

    @property
    def causal(self) -> bool:
        """Whether it writes from left to right."""
        return any(row.causal for row in [*self.pooled, *self.rows("likelihood")])

    @property
    def base(self) -> PooledCell:
        return able(next(row for row in self.pooled if row.condition["name"] == "none"))

    def masked(self, rank: str = "clean", rows: str | None = None) -> list[PooledCell]:
        """Plainly masked sinks by K, over the tasks that the model can do; an ARM's by its last row where that was run."""
        found = {
            way: [able(row) for row in self.pooled
                  if plain(row) and row.condition["rank"] == rank and row.condition["rows"] == way]
            for way in ("all", "last")
        }  # fmt: skip
        if rows is not None:
            return found[rows]
        return found["last"] if self.causal and found["last"] else found["all"]

    def find(self, name: str, **wanted: Any) -> PooledCell | None:
        """The pooled row of a condition that says this and nothing else, over the tasks that the model can do."""
        asked = {"name": name, "k": 0, "rank": None, "rows": None, **wanted}
        return next((able(row) for row in self.pooled if dict(row.condition) == asked), None)


def masking(of: Model) -> Found:
    for rank in ("clean", "as_run"):
        if rows := of.masked(rank):
            base = of.base
            decided = {row.condition["k"]: decide(row, of.margin, row.p_primary) for row in rows}
            value = TOO_WEAK if base.able is None else _robust(decided, rows)
            shown = next((row for row in rows if decided[row.condition["k"]].said != "robust"), rows[-1])
            told = " ".join(_masked(row, base.accuracy) for row in rows)
            clause = f"{changed(shown)} points at K={shown.condition['k']}, n = {shown.n}"
            yield f"masking_{rank}", value, clause, f"{_start(base)} {_ranked(rows[0])}{told}"


def _ranked(row: PooledCell) -> str:
    """By which rows the keys of an ARM were ranked; nothing of other models, which have one way only."""
    if not row.causal:
        return ""
    last = row.condition["rows"] == "last"
    return "Ranked by its last row. " if last else "Ranked by its columns; no ranking by its last row was run. "


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
    for match in ("count", "mass"):
        if control := row.controls.get(match):
            name = "as many random keys" if match == "count" else _by_mass(row.mass_share, control.mass_share)
            words += f"; {name} {points(row.difference - control.difference)} (sinks against them {changed(control)})"
        elif match == "count":
            words += "; no control with as many random keys"
    return words + "."


def _by_mass(sinks: float | None, taken: float | None) -> str:
    """What to call random keys that were drawn up to the sinks' mass: there may not be enough of it."""
    if sinks is not None and taken is not None and abs(taken - sinks) <= MATCHED * sinks:
        return "random keys of the same mass"
    return f"random keys meant to match the mass (they took {percent(taken)})"


def collapse(of: Model) -> Found:
    """Of an ARM only: is what hiding the last row's top key costs about position 0?"""
    last = of.find("mask_sinks", k=1, rows="last", rank="clean")
    first = of.find("mask_positions", positions=[0], since="second")
    random = of.find("mask_random", k=1, rows="last", rank="clean", match="count")
    random = random or of.find("mask_random", k=1, rows="all", rank="clean", match="count")
    if not of.causal or last is None or first is None or random is None:
        return
    told = [("the last row's top key", last), ("position 0 alone", first), ("one random key", random)]
    if column := of.find("mask_sinks", k=1, rows="all", rank="clean"):
        told.append(("the column's top key", column))
    words = ", ".join(f"{name} {changed(row)}" for name, row in told)
    decision = decide(last, of.margin, last.p_primary)
    if of.base.able is None:
        value = TOO_WEAK
    elif decision.said == "dependent":
        sinks = first.difference_high <= last.difference / 2 and random.difference_low > last.difference / 2
        value = "about sinks" if sinks else "not about sinks alone"
    else:
        value = "no collapse" if decision.said == "robust" else str(decision)
    clause = f"position 0 {points(first.difference)}, last row's top key {points(last.difference)} points"
    yield "collapse", value, clause, f"{_start(of.base)} Masked at every step after the first: {words}."


def tasks(of: Model) -> Found:
    """Is the loss the same for every kind of task? Spread of the differences, beside what the intervals allow."""
    cells: list[Cell] = of.rows("cells")
    rows = [row for row in cells if plain(row) and row.condition["rank"] == "clean" and row.condition["rows"] == "all"]
    if len({row.task for row in rows}) < 3:
        return
    shares = {row.task: row.accuracy for row in cells if row.condition["name"] == "none"}
    weak = {task: share for task, share in shares.items() if share < WEAK}
    for k in sorted({row.condition["k"] for row in rows}):
        mine = [row for row in rows if row.condition["k"] == k and row.task not in weak]
        mine.sort(key=lambda row: row.difference)
        told = ", ".join(
            f"{row.task} {changed(row)}{'' if row.n >= ENOUGH else f' (n = {row.n}: not counted)'}" for row in mine
        )
        clause = f"{mine[0].task} {points(mine[0].difference)}, {mine[-1].task} {points(mine[-1].difference)} points" \
            if mine else "no task left"  # fmt: skip
        yield f"tasks_k{k}", _uneven(mine), clause, f"K={k}: {told or 'no task left'}.{left_out(weak)}"


def _uneven(rows: Sequence[Cell]) -> str:
    """Of rows from the largest loss to the smallest."""
    if len(rows) < 2:
        return TOO_WEAK
    counted = [row for row in rows if row.n >= ENOUGH]
    if len(counted) < 2:
        return "too few to say"
    apart = counted[0].difference_high < counted[-1].difference_low
    return "uneven" if apart else "even within the intervals"


def settings(of: Model) -> Found:
    rows: list[Setting] = of.rows("settings")
    if rows:
        counted = [row.able for row in rows if row.able]
        moved = [row for row in counted if row.p_holm < LEVEL]
        value = f"{len(moved)} of {len(counted)} differ" if counted else TOO_WEAK
        clause = f"against {rows[0].against}, Holm over {len(counted)} points"
        yield "settings", value, clause, f"Against {rows[0].against}: {', '.join(map(_point, rows))}."


def _point(row: Setting) -> str:
    found = row.able
    if not found:
        return f"{row.setting} {points(row.difference)} {span(row)} (no task reaches {percent(WEAK)} in either)"
    without = f", without {' and '.join(row.weak)} as too weak" if row.weak else ""
    return f"{row.setting} {changed(found)} (p {chance(found.p_holm)}{without})"
