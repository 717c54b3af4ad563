"""Verdicts on right answers: what masking costs, pooled and task by task, and what the points of a sweep change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sinkscope.study.analysis.accuracy import WEAK
from sinkscope.study.analysis.wording import chance, changed, left_out, percent, points, span

LIMIT = 0.05  # points of accuracy, as a share
LOST = 0.2  # share of the right answers
LEVEL = 0.05  # of p
MATCHED = 0.25  # how far, relatively, the mass of a control may be from that of the sinks
ENOUGH = 20  # problems below which an interval without any width says nothing
TOO_WEAK = "too weak to say"

Row = dict[str, Any]
Rows = list[Row]
Found = Iterator[tuple[str, str, str]]  # name, value and sentence of a verdict


def plainly_masked(rows: Rows, rank: str, way: str = "all") -> Rows:
    """Rows of masked sinks, ranked by all rows or the last one, without further conditions."""
    return [
        row for row in rows
        if row["condition"]["name"] == "mask_sinks" and row["condition"]["rank"] == rank and row["condition"]["rows"] == way
        and not row["condition"].get("above") and not row["condition"].get("keep_self")
    ]  # fmt: skip


def able(row: Row) -> Row:
    """A pooled row over those tasks only that the model can do; as it is if it can do none."""
    return {**row, **row["able"]} if row["able"] else row


def baseline(pooled: Rows) -> Row:
    return next(row for row in pooled if row["condition"]["name"] == "none")


def masking(of: dict[str, Rows]) -> Found:
    for rank in ("clean", "as_run"):
        if rows := _judged(of["pooled"], rank):
            base = able(baseline(of["pooled"]))
            told = " ".join(_masked(row, base["accuracy"]) for row in rows)
            yield f"masking_{rank}", _robust(rows, base), f"{_start(base)} {_ranked(rows[0])}{told}"


def _judged(pooled: Rows, rank: str) -> Rows:
    """An ARM is judged by its last row, as in the paper, where that was run."""
    columns, last = (list(map(able, plainly_masked(pooled, rank, way))) for way in ("all", "last"))
    causal = any(row["causal"] for row in pooled)
    return last if causal and last else columns


def _ranked(row: Row) -> str:
    """By which rows the keys of an ARM were ranked; nothing of other models, which have one way only."""
    if not row["causal"]:
        return ""
    last = row["condition"]["rows"] == "last"
    return "Ranked by its last row. " if last else "Ranked by its columns; no ranking by its last row was run. "


def _robust(rows: Rows, base: Row) -> str:
    if base["able"] is None:
        return TOO_WEAK
    failing = [row["condition"]["k"] for row in rows if not _holds(row, base["accuracy"])]
    held = [row for row in rows if not failing or row["condition"]["k"] < min(failing)]
    if not held:
        return "dependent"
    upto = f" up to K={max(row['condition']['k'] for row in held)}" if failing else ""
    return f"robust{upto}" + ("" if all("count" in row["controls"] for row in held) else ", no control")


def _holds(row: Row, before: float) -> bool:
    control = row["controls"].get("count")
    worse = control is not None and control["difference"] < 0 and control["p_holm"] < LEVEL
    return bool(row["difference"] >= -LIMIT and not _much(row, before) and not worse)


def _much(row: Row, before: float) -> bool:
    """Is more than a fifth of the right answers lost, less those won?"""
    return bool(-row["difference"] > LOST * before + 1e-9)


def _start(base: Row) -> str:
    told = f"{100 * base['accuracy']:.1f} % right with nothing masked (n = {base['n']})"
    if base["able"] is None:
        return f"{told}; no task reaches {percent(WEAK)}."
    return f"{told}.{left_out(base['weak'])}"


def _masked(row: Row, before: float) -> str:
    taken = "" if row["mass_share"] is None else f" ({percent(row['mass_share'])} of attention taken)"
    lost = (
        f", {percent(-row['difference'] / before)} of the right answers lost" if before and _much(row, before) else ""
    )
    words = f"K={row['condition']['k']}: {changed(row)}{taken}{lost}, p {chance(row['p_holm'])}"
    for match in ("count", "mass"):
        if control := row["controls"].get(match):
            name = "as many random keys" if match == "count" else _by_mass(row["mass_share"], control["mass_share"])
            gap = row["difference"] - control["difference"]
            words += f"; {name} {points(gap)} (sinks against them {changed(control)})"
        elif match == "count":
            words += "; no control with as many random keys"
    return words + "."


def _by_mass(sinks: float | None, taken: float | None) -> str:
    """What to call random keys that were drawn up to the sinks' mass: there may not be enough of it."""
    if sinks is not None and taken is not None and abs(taken - sinks) <= MATCHED * sinks:
        return "random keys of the same mass"
    return f"random keys meant to match the mass (they took {percent(taken)})"


def collapse(of: dict[str, Rows]) -> Found:
    """Of an ARM only: is what hiding the last row's top key costs about position 0?"""
    rows = of["pooled"]
    if not rows or not rows[0]["causal"]:
        return
    last = _find(rows, "mask_sinks", k=1, rows="last", rank="clean")
    first = _find(rows, "mask_positions", positions=[0], since="second")
    random = _find(rows, "mask_random", k=1, rows="last", match="count")
    random = random or _find(rows, "mask_random", k=1, match="count")
    column = _find(rows, "mask_sinks", k=1, rows="all", rank="clean")
    if last is None or first is None or random is None:
        return
    told = [("the last row's top key", last), ("position 0 alone", first), ("one random key", random)]
    told += [("the column's top key", column)] if column else []
    words = ", ".join(f"{name} {changed(row)}" for name, row in told)
    base = able(baseline(rows))
    if base["able"] is None:
        value = TOO_WEAK
    elif last["difference"] >= -LIMIT:
        value = "no collapse"
    else:
        sinks = first["difference"] <= last["difference"] / 2 and random["difference"] > last["difference"] / 2
        value = "about sinks" if sinks else "not about sinks alone"
    yield "collapse", value, f"{_start(base)} Masked at every step after the first: {words}."


def _find(pooled: Rows, name: str, **wanted: Any) -> Row | None:
    """The pooled row of a condition, without further conditions."""
    wanted = {"name": name, "above": None, "keep_self": None, **wanted}
    fits = (row for row in pooled if all(row["condition"].get(key) == value for key, value in wanted.items()))
    return next(map(able, fits), None)


def tasks(of: dict[str, Rows]) -> Found:
    """Is the loss the same for every kind of task? Spread of the differences, beside what the intervals allow."""
    rows = plainly_masked(of["cells"], "clean")
    if len({row["task"] for row in rows}) < 3:
        return
    shares = {row["task"]: row["accuracy"] for row in of["cells"] if row["condition"]["name"] == "none"}
    weak = {task: share for task, share in shares.items() if share < WEAK}
    for k in sorted({row["condition"]["k"] for row in rows}):
        mine = [row for row in rows if row["condition"]["k"] == k and row["task"] not in weak]
        mine.sort(key=lambda row: float(row["difference"]))
        told = ", ".join(f"{row['task']} {changed(row)}{'' if _says(row) else _silent(row)}" for row in mine)
        yield f"tasks_k{k}", _uneven(mine), f"K={k}: {told or 'no task left'}.{left_out(weak)}"


def _uneven(rows: Rows) -> str:
    """Of rows from the largest loss to the smallest."""
    if len(rows) < 2:
        return TOO_WEAK
    counted = [row for row in rows if _says(row)]
    if len(counted) < 2:
        return "too few to say"
    apart = counted[0]["difference_high"] < counted[-1]["difference_low"]
    return "uneven" if apart else "even within the intervals"


def _says(row: Row) -> bool:
    """Resampling answers that all did the same gives an interval without width, however few they are."""
    return bool(row["difference_low"] < row["difference_high"] or row["n"] >= ENOUGH)


def _silent(row: Row) -> str:
    return f" (n = {row['n']}, all alike: not counted)"


def settings(of: dict[str, Rows]) -> Found:
    rows = of["settings"]
    if rows:
        counted = [row["able"] for row in rows if row["able"]]
        moved = [row for row in counted if row["p_holm"] < LEVEL]
        value = f"{len(moved)} of {len(counted)} differ" if counted else TOO_WEAK
        yield "settings", value, f"Against {rows[0]['against']}: {', '.join(map(_point, rows))}."


def _point(row: Row) -> str:
    found = row["able"]
    if not found:
        return f"{row['setting']} {points(row['difference'])} {span(row)} (no task reaches {percent(WEAK)} in either)"
    without = f", without {' and '.join(row['weak'])} as too weak" if row["weak"] else ""
    return f"{row['setting']} {changed(found)} (p {chance(found['p_holm'])}{without})"
