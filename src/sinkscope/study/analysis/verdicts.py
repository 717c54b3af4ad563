"""Verdicts by stated rules; every sentence is made from the numbers and has them in it.

Pooled numbers are over those tasks of which at least a tenth is right with nothing masked. The sentence names the others,
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
mechanism   confidence falls more where a token depended on the masked keys, and commits come later, both beyond what as many
            random keys do (95 % intervals); the delay is judged where commits per step are free, if that was run
weaker      of conditions meant to weaken sinks, those count under which sinks draw less than 80 % of the attention that they
            drew before. free: one of those is robust; at a price: all are dependent; undecided otherwise; no: none counts
still       the same of conditions that hold sinks, which count where fewer than half as many heads have a moving one
settings    points of a sweep that differ from the first (exact McNemar, corrected over the points, at 5 %)
"""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.study import vocabulary
from sinkscope.study.analysis import losses
from sinkscope.study.analysis.accuracy import WEAK
from sinkscope.study.analysis.losses import Found, ModelRows, decide
from sinkscope.study.results import Dynamics, Heads, Interval, Mechanism, Tables, Verdict
from sinkscope.study.text import changed, left_out, nats, percent, rule, span

FEW_HEADS = 0.2  # share of heads with sinks below which there are few
MAJORITY = 0.5  # share of sinks at the start, of heads of one class
STRONG = 0.3  # share of the attention on key 0, as Gu et al. count a sink
FREE = 10  # problems with positions left open that a delay is judged from
RECOVERED = 0.5  # of the share of attention on sinks before the cut
CLASSES = {"static": "static", "moving": "moving", "flash": "flashing", "split": "split"}


def verdicts(tables: Tables, margin: float = 0.05) -> list[Verdict]:
    """A row per model and verdict; margin: in shares."""
    found: list[Verdict] = []
    for model in dict.fromkeys([name for name, _ in _points(tables)] + [row.model for row in tables.likelihood]):
        mine = tables.of(model)
        swept = list(dict.fromkeys(setting for _, setting in _points(mine)))
        at = f"At {swept[0]}: " if len(swept) > 1 else ""
        for judge in JUDGES:
            for name, value, clause, because in judge(ModelRows(first_point(mine), margin)):
                found.append(Verdict(model, name, value, at + because, f"{value}: {clause}"))
        for judge in WHOLE:
            for name, value, clause, because in judge(ModelRows(mine, margin)):
                found.append(Verdict(model, name, value, because, f"{value}: {clause}"))
    return found


def first_point(tables: Tables) -> Tables:
    """Of every model, the rows at the first point of a sweep, and those that belong to no point."""
    first: dict[str, str] = {}
    for model, setting in _points(tables):
        first.setdefault(model, setting)
    return tables.where(lambda row: getattr(row, "setting", None) in (None, first.get(row.model)))


def _points(tables: Tables) -> list[tuple[str, str]]:
    """Model and decode setting of what was answered and traced."""
    answered = [(row.model, row.setting) for row in tables.pooled]
    return answered + [(row.model, row.setting) for row in tables.dynamics]


def plain_dynamics(rows: Sequence[Dynamics]) -> Dynamics | None:
    """The row with nothing masked."""
    return next((row for row in rows if row.condition == "none"), None)


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
    row = plain_dynamics(of.tables.dynamics)
    if row is None:
        return
    heads = row.judged
    static, moving, flash, split, none = (percent(getattr(heads, name)) for name in (*CLASSES, "none"))
    view = ", by columns so far per row that sees the key" if row.columns else ""
    lives = "" if heads.lifetime is None else f"; a sink lives {heads.lifetime:.1f} steps on average"
    ways = f", {percent(heads.right)} of all heads to the right and {percent(heads.left)} to the left"
    yield (
        "sinks", class_of(heads), f"{static} of heads static, {moving} moving, {none} without sinks",
        f"Of its heads {static} have a static sink, {moving} a moving one{ways if heads.moving else ''}, {flash} flashes, "
        f"{split} different ones for masked and committed queries, and {none} none ({row.generations} generations, "
        f"{rule(row)}{view}){lives}."
    )  # fmt: skip
    where = place_of(row)
    if where is not None:
        first, start, prompt, masks = (percent(row.places[name]) for name in ("first", "start", "prompt", "masked"))
        key_0 = percent(row.key_0)
        yield (
            "place", where, f"{start} of sinks in the first four positions, key 0 draws {key_0}",
            f"{first} of its sinks are at position 0, {start} among the first four positions, {prompt} in the prompt, "
            f"{masks} on masks; key 0 draws {key_0} of the attention."
        )  # fmt: skip


def _arm_like(of: ModelRows) -> Found:
    signs: list[tuple[bool, str]] = []
    row = next((row for row in of.masked() if row.condition["k"] == 1), None)
    if row is not None and row.able is not None:
        signs.append((decide(row, of.margin).said == "dependent", f"one masked sink: {changed(row)}"))
    before = plain_dynamics(of.tables.dynamics)
    if before is not None and (where := place_of(before)) is not None:
        told = f"sinks at the start: {percent(before.places['start'])}"
        if (before.places["start"] or 0.0) <= MAJORITY:  # too few of them: key 0's share decides
            told += f", key 0 draws {percent(before.key_0)} of the attention"
        signs.append((where == "start", told))
    cut = next((other for other in of.tables.dynamics if vocabulary.cuts_the_middle(other.condition)), None)
    if before is not None and cut is not None and before.absorption and cut.absorption is not None:
        ratio = cut.absorption / before.absorption
        signs.append((ratio < RECOVERED, f"attention on sinks after a cut in the middle: {percent(ratio)} of before"))
    if signs:
        met = f"criteria met: {sum(sign for sign, _ in signs)} of {len(signs)}"
        because = "; ".join(f"{why} ({'yes' if sign else 'no'})" for sign, why in signs)
        clause = ", ".join(why.split(":")[0] for sign, why in signs if sign) or "none of them"
        uncounted = left_out(row.weak) if row else ""
        if row is not None and row.able is None:
            uncounted = f" What one masked sink costs is left out: no task reaches {percent(WEAK)} right."
        yield "arm_like", f"is an ARM; {met}" if of.causal else met, clause, f"{because}.{uncounted}"


def _likelihood(of: ModelRows) -> Found:
    for read, opening in (("texts", "Held-out text"), ("answers", "The true answer")):
        rows = [row for row in of.tables.likelihood if row.of == read]
        masked = [row for row in rows if not vocabulary.is_untouched(row.condition)]
        if not masked:
            continue
        base = next(row for row in rows if row.condition["name"] == "none")
        worst = min(masked, key=lambda row: row.difference)
        change = ", ".join(f"{row.label} {nats(row)}" for row in masked)
        yield (
            "likelihood", f"worst under {worst.label}", f"{nats(worst)} nats per token, n = {worst.n} {worst.of}",
            f"{opening} has {base.value:.2f} nats per token ({base.n} {base.of}, {base.tokens} tokens); change: {change}."
        )  # fmt: skip


def _first_key(of: ModelRows) -> Found:
    for row in of.tables.first_key:
        shares, start = row.layers, len(row.layers) * 2 // 5
        late = sum(shares[start:]) / len(shares[start:])
        layers = f"layers {start}–{len(shares) - 1}"
        yield (
            "first_key", f"{late:.2f}", f"share of attention on key 0 in {layers}",
            f"Key 0 gets {late:.2f} of the attention on average in {layers}, {sum(shares) / len(shares):.2f} over all layers, "
            f"at most {max(shares):.2f} (layer {shares.index(max(shares))})."
        )  # fmt: skip


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
    clause = f"lower confidence at {sum(sure)} of {len(rows)} K, {when}, where tokens depended on sinks"
    yield "mechanism", value, clause, " ".join(map(_dependence, rows))


def _dependence(row: Mechanism) -> str:
    """Dream's confidence is an entropy with its sign turned: that is in nats, where others are probabilities."""
    scale = 1 if row.unit == "nats" else 100
    more, less = scale * (row.confidence_sinks_high or 0.0), scale * (row.confidence_sinks_low or 0.0)
    told = (
        f"K={row.k}: confidence {more:+.1f} {row.unit} where positions looked more at the masked sinks and {less:+.1f} "
        f"where less (gap {span(row.confidence_sinks_gap, scale)}; {span(row.confidence_gap_beyond_random, scale)} beyond "
        f"that under random keys). With one commit per step the halves can only change places: the one that looked more is "
        f"committed {span(row.delay_sinks_gap)} steps later than the other ({span(row.delay_gap_beyond_random)} beyond)"
    )
    if row.free_delay_sinks is not None and row.free_delay_sinks_gap is not None:
        beyond = f" ({span(row.free_delay_beyond_random)} beyond)" if row.free_delay_beyond_random else ""
        told += (
            f"; with commits by a threshold all positions come {span(row.free_delay_sinks)} steps later{beyond}, the half "
            f"that looked more {span(row.free_delay_sinks_gap)} more ({row.free_problems} problems left any open)"
        )
    return f"{told}; {row.problems} problems."


# Of the first point of a sweep, and of the whole sweep.
JUDGES = (_sinks, losses.masking, _arm_like, losses.collapse, losses.tasks, _mechanism, losses.control)
WHOLE = (losses.settings, _likelihood, _first_key)
