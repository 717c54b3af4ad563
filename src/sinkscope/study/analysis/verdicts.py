"""Verdicts by stated rules, each with the figures that it rests on.

Pooled numbers are over those tasks of which at least a tenth is right with nothing masked. The figures name the others,
and the verdict is "too weak to say" where there is no such task. Of a sweep the first point is judged, and named.

sinks       few: no more than a fifth of the heads have sinks; else what at least half of those that have any do: static,
            moving, flashing (a sink of one step), split; mixed otherwise. An ARM's heads are judged by their columns so far
place       start: more than half of the sinks are among the first four positions, or key 0 draws more than 0.3 of the
            attention; else spread
masking     robust: the lower end of the interval of the difference is above −margin (5 points unless the study says
            otherwise); dependent: the upper end is below it, and for a primary comparison the corrected p is below 5 %; undecided
            otherwise, with the number of problems that would decide. "no control": no count-matched random keys were run
arm_like    criteria met: one masked sink is dependent; sinks stand at the start; attention does not come back to sinks when
            the middle of the prompt is cut (where that was run)
collapse    of an ARM ranked by its last row: about sinks only if hiding position 0 alone does half of it and hiding as many
            random keys does not
tasks       uneven: the interval of the task that loses most lies below that of the one that loses least
mechanism   confidence falls more where a token depended on the masked keys, and commits come later, both beyond what as many
            random keys do (95 % intervals); the delay is judged where commits per step are free, if that was run
weaker      of conditions meant to weaken sinks, those count under which sinks draw less than 80 % of the attention that they
            drew before. free: one of those is robust; at a price: all are dependent; undecided otherwise; no: none counts
still       the same of conditions that hold sinks, which count where fewer than half as many heads have a moving one
settings    points of a sweep that differ from the first (exact McNemar, corrected over the points, at 5 %)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sinkscope.statistics import CORRECTION, problems_needed
from sinkscope.study import vocabulary
from sinkscope.study.analysis.accuracy import WEAK
from sinkscope.study.analysis.model_rows import ModelRows, first_point, points, solvable
from sinkscope.study.results import Cell, Dynamics, Heads, Interval, Mechanism, PooledCell, SweepPoint, Tables, Verdict
from sinkscope.study.text import chance, changed, percent, rule, span

LEVEL = 0.05  # of p
FEWEST = 20  # problems below which a task says nothing
TOO_WEAK = "too weak to say"
FEW_HEADS = 0.2  # share of heads with sinks below which there are few
MAJORITY = 0.5  # share of sinks at the start, of heads of one class
STRONG = 0.3  # share of the attention on key 0, as Gu et al. count a sink
FREE = 10  # problems with positions left open that a delay is judged from
RECOVERED = 0.5  # of the share of attention on sinks before the cut
LESS = 0.8  # of the attention on sinks
STILLER = 0.5  # of the heads with a moving sink
CLASSES = {"static": "static", "moving": "moving", "flash": "flashing", "split": "split"}
Found = Iterator[tuple[str, str, list[str]]]  # name, value, and the figures behind it, the telling one first


def verdicts(tables: Tables, margin: float = 0.05) -> list[Verdict]:
    """A row per model and verdict; margin: in shares."""
    found: list[Verdict] = []
    for model in dict.fromkeys(name for name, _ in points(tables)):
        mine = tables.of(model)
        swept = list(dict.fromkeys(setting for _, setting in points(mine)))
        at = f"At {swept[0]}: " if len(swept) > 1 else ""
        for start, rows, judges in ((at, first_point(mine), JUDGES), ("", mine, WHOLE)):
            for judge in judges:
                for name, value, figures in judge(ModelRows(model, rows, margin)):
                    because = f"{start}{'; '.join(figures)}."
                    found.append(Verdict(model, name, value, because, f"{value}: {figures[0]}"))
    return found


def decide(row: PooledCell, margin: float) -> str:
    """robust, dependent, or undecided with the number of problems that would decide; margin: in shares.

    Robust: the lower end is above −margin. Dependent: the upper end is below it.
    A primary comparison is dependent only if its p, corrected over all primary ones, says so too.
    """
    if row.difference_low > -margin:
        return "robust"
    if row.difference_high < -margin and (row.p_primary is None or row.p_primary < LEVEL):
        return "dependent"
    needed = problems_needed(row.lost, row.won, row.n, margin)
    why = "the loss is about the margin" if needed is None else f"needs about n = {max(needed, row.n + 1)} problems"
    return f"undecided ({why})"


def _untouched(base: PooledCell) -> list[str]:
    return [f"{100 * base.accuracy:.1f} % right with nothing masked (n = {base.n})", *_too_weak(base.weak, base.able)]


def _too_weak(weak: Mapping[str, float], able: object = True) -> list[str]:
    """Which tasks do not count; able: None where there is no other."""
    told = ", ".join(f"{task} ({100 * share:.1f} % right)" for task, share in weak.items())
    return [f"no task reaches {percent(WEAK)} right"] if able is None else [f"too weak: {told}"] if told else []


# ---- what sinks are and do


def class_of(heads: Heads) -> str:
    have = 1 - heads.none
    if have <= FEW_HEADS:
        return "few"
    return next((word for name, word in CLASSES.items() if getattr(heads, name) >= MAJORITY * have), "mixed")


def place_of(row: Dynamics) -> str | None:
    start = row.places["start"]
    if start is None:
        return None
    return "start" if start > MAJORITY or row.key_0 > STRONG else "spread"


def _sinks(of: ModelRows) -> Found:
    row = of.traced()
    if row is None:
        return
    heads = row.judged
    shares = ", ".join(f"{percent(getattr(heads, name))} {name}" for name in (*CLASSES, "none"))
    view = ", by columns so far per row that sees the key" if row.columns else ""
    life = [] if heads.lifetime is None else [f"a sink lives {heads.lifetime:.1f} steps"]
    ways = f"{percent(heads.right)} of heads move right and {percent(heads.left)} left"
    made = f"{row.generations} generations, {rule(row)}{view}"
    yield "sinks", class_of(heads), [f"of the heads {shares}", ways, *life, made]
    where = place_of(row)
    if where is not None:
        parts = {"first": "at position 0", "prompt": "in the prompt", "masked": "on masks"}
        others = ", ".join(f"{percent(row.places[name])} {told}" for name, told in parts.items())
        first = f"{percent(row.places['start'])} of sinks in the first four positions, key 0 draws {percent(row.key_0)}"
        yield "place", where, [f"{first} of the attention", others]


def _arm_like(of: ModelRows) -> Found:
    signs: list[tuple[bool, str]] = []
    row = next((row for row in of.masked() if row.condition["k"] == 1), None)
    if row is not None and row.able is not None:
        signs.append((decide(row, of.margin) == "dependent", f"one masked sink: {changed(row)}"))
    before = of.traced()
    if before is not None and (where := place_of(before)) is not None:
        told = f"sinks at the start: {percent(before.places['start'])}, key 0 draws {percent(before.key_0)}"
        signs.append((where == "start", told))
    cut = next((other for other in of.tables.dynamics if vocabulary.cuts_the_middle(other.condition)), None)
    if before is not None and cut is not None and before.absorption and cut.absorption is not None:
        ratio = cut.absorption / before.absorption
        signs.append((ratio < RECOVERED, f"attention on sinks after a cut in the middle: {percent(ratio)} of before"))
    if signs:
        met = f"criteria met: {sum(sign for sign, _ in signs)} of {len(signs)}"
        figures = [f"{told} ({'yes' if sign else 'no'})" for sign, told in signs]
        uncounted = _too_weak(row.weak, row.able) if row else []
        yield "arm_like", f"is an ARM; {met}" if of.causal else met, [*figures, *uncounted]


# ---- what masking costs


def _masking(of: ModelRows) -> Found:
    for rank in ("clean", "as_run"):
        if rows := of.masked(rank):
            value = TOO_WEAK if of.base.able is None else _robust(rows, of.margin)
            ranked = [f"ranked by {'its last row' if rows[0].condition['rows'] == 'last' else 'columns'}"]
            figures = [figure for row in rows for figure in _masked(row)]
            yield f"masking_{rank}", value, [*figures, *(ranked if of.causal else []), *_untouched(of.base)]


def _robust(rows: Sequence[PooledCell], margin: float) -> str:
    """By the smallest K that is not robust; robust up to the one before it."""
    decided = {row.condition["k"]: decide(row, margin) for row in rows}
    failing = [k for k, decision in decided.items() if decision != "robust"]
    held = [row for row in rows if not failing or row.condition["k"] < min(failing)]
    if not held:
        return decided[min(decided)]
    upto = f" up to K={max(row.condition['k'] for row in held)}" if failing else ""
    return f"robust{upto}" + ("" if all("count" in row.controls for row in held) else ", no control")


def _masked(row: PooledCell) -> Iterator[str]:
    k = f"K={row.condition['k']}"
    yield f"{k}: {changed(row)}, {percent(row.mass_share)} of the attention, p {chance(row.p_holm)}"
    for match, control in row.controls.items():
        taken = percent(control.mass_share)
        yield f"{k} less {match}-matched random keys, which took {taken}: {changed(control)}"
    if "count" not in row.controls:
        yield f"{k}: no control with as many random keys"


def _collapse(of: ModelRows) -> Found:
    """Of an ARM only: is what hiding the last row's top key costs about position 0?"""
    last, first, column = (of.find((key, None)) for key in ("last row's top key", "position 0", "top key"))
    random = of.find(("last row's top key", "count"), ("top key", "count"))
    if not of.causal or last is None or first is None or random is None:
        return
    decision = decide(last, of.margin)
    value = "no collapse" if decision == "robust" else decision
    if of.base.able is None:
        value = TOO_WEAK
    elif decision == "dependent":
        sinks = first.difference_high <= last.difference / 2 and random.difference_low > last.difference / 2
        value = "about sinks" if sinks else "not about sinks alone"
    rows = {"last row's top key": last, "position 0": first, "one random key": random, "column's top key": column}
    figures = [f"{name} {changed(row)}" for name, row in rows.items() if row]
    yield "collapse", value, [*figures, *_untouched(of.base)]


def _tasks(of: ModelRows) -> Found:
    """Is the loss the same for every kind of task?"""
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
        figures = [f"{row.task} {changed(row)} (n = {row.n})" for row in mine]
        yield f"tasks_k{k}", _uneven(mine), [*figures, *_too_weak(weak)]


def _uneven(rows: Sequence[Cell]) -> str:
    """Of rows from the largest loss to the smallest."""
    if len(rows) < 2:
        return TOO_WEAK
    counted = [row for row in rows if row.n >= FEWEST]
    if len(counted) < 2:
        return "too few to say"
    apart = counted[0].difference_high < counted[-1].difference_low
    return "uneven" if apart else "even within the intervals"


def _settings(of: ModelRows) -> Found:
    if rows := of.tables.settings:
        counted = [row.able for row in rows if row.able]
        moved = [row for row in counted if row.p_holm < LEVEL]
        value = f"{len(moved)} of {len(counted)} differ" if counted else TOO_WEAK
        against = f"against {rows[0].against}, {CORRECTION} over {len(counted)} points"
        yield "settings", value, [against, *(figure for row in rows for figure in _point(row))]


def _point(row: SweepPoint) -> list[str]:
    told = f"{changed(row.able)}, p {chance(row.able.p_holm)}" if row.able else changed(row)
    return [f"{row.setting} {told}", *(f"{row.setting} {why}" for why in _too_weak(row.weak, row.able))]


# ---- why, and at what price


def less_sure(row: Mechanism) -> bool:
    return _side(row.confidence_sinks_gap) < 0 and _side(row.confidence_gap_beyond_random) < 0


def later(row: Mechanism) -> bool | None:
    """Where commits per step are free, if that was run; a delay under one commit per step is a change of order only.

    None where too few problems left anything open for the test to speak.
    """
    if row.free_delay_sinks_gap is not None:
        if (row.free_problems or 0) < FREE:
            return None
        return _side(row.free_delay_sinks_gap) > 0 and _side(row.free_delay_gap_beyond_random) > 0
    return _side(row.delay_sinks_gap) > 0 and _side(row.delay_gap_beyond_random) > 0


def _side(found: Interval | None) -> int:
    """Of which sign the whole interval is; 0 if it holds 0 or was not measured."""
    return 0 if found is None else (found.low > 0) - (found.high < 0)


def _mechanism(of: ModelRows) -> Found:
    rows = [row for row in of.tables.mechanism if row.confidence_sinks_gap is not None]
    if not rows:
        return
    sure, late = [less_sure(row) for row in rows], [later(row) for row in rows]
    value = "both" if all(sure) and all(late) else "neither" if not any(sure) and not any(late) else "in part"
    when = f"later at {sum(map(bool, late))} of {len(rows)} K" if None not in late else "later: too few to say"
    first = f"lower confidence at {sum(sure)} of {len(rows)} K, {when}, where tokens depended on sinks"
    yield "mechanism", value, [first, *(figure for row in rows for figure in _gaps(row))]


def _gaps(row: Mechanism) -> Iterator[str]:
    """Every interval under its name in results.json; shares are in points, and Dream's confidence, an entropy, in nats."""
    yield f"K={row.k}: {row.problems} problems, {row.free_problems or 0} of them with commits by a threshold"
    for name, found in vars(row).items():
        if isinstance(found, Interval):
            scale = 100 if name.startswith("confidence") and row.unit == "points" else 1
            yield f"{name.replace('_', ' ')} {span(found, scale)}"


def _control(of: ModelRows) -> Found:
    """Were sinks weaker, or still, under a condition that is meant to make them so, and at what price?"""
    yield from _price(of, "weaker", "weaken", lambda was, now: (now.absorption or 0.0) < LESS * (was.absorption or 0.0))
    yield from _price(of, "still", "hold", lambda was, now: now.moving < STILLER * was.moving)


def _price(of: ModelRows, name: str, aim: str, did: Callable[[Heads, Heads], bool]) -> Found:
    """Of the conditions with this aim whose answers and traces are both there."""
    before = of.traced()
    aimed = [solvable(row) for row in of.tables.pooled if vocabulary.aim(row.condition) == aim]
    found = [(row, now.judged) for row in aimed if (now := of.traced(row.label)) is not None]
    if not found or before is None:
        return
    was = before.judged
    decided = {row.label: decide(row, of.margin) for row, now in found if did(was, now)}
    free = "robust" in decided.values()
    counted = [row for row, _ in found if decided.get(row.label) == "robust" or (row.label in decided and not free)]
    value = "at a price" if set(decided.values()) == {"dependent"} else "undecided"
    value = "no" if not decided else "free" if free else value
    best = max(counted, key=lambda row: row.difference, default=None)
    first = "no condition did it" if best is None else f"{best.label} {changed(best)} points"
    yield name, value, [first, *(
        f"{row.label}{'' if row.label in decided else ' (does not count)'}: answers {changed(row)}, "
        f"attention on sinks {percent(was.absorption)} → {percent(now.absorption)}, "
        f"heads with a moving one {percent(was.moving)} → {percent(now.moving)}"
        for row, now in found
    )]  # fmt: skip


# Of the first point of a sweep, and of the whole sweep.
JUDGES = (_sinks, _masking, _arm_like, _collapse, _tasks, _mechanism, _control)
WHOLE = (_settings,)
