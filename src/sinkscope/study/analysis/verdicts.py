"""Verdicts by stated rules; every sentence is made from the numbers and has them in it.

Pooled numbers are over those tasks of which at least a tenth is right with nothing masked; the sentence names the others,
and the verdict is "too weak to say" where there is no such task. Of a sweep the first point is judged, and named.

sinks       few: no more than a fifth of the heads have sinks; else what at least half of those that have any do: static,
            moving, flashing (a sink of one step), split; mixed otherwise. An ARM's heads are judged by their columns so far
place       start: more than half of the sinks are among the first four positions, or key 0 draws more than 0.3 of the
            attention; else spread
masking     robust: the lower end of the interval of the difference is above −margin (5 points unless the study says
            otherwise); dependent: the upper end is below it, and for a primary comparison Holm's p is below 5 %; undecided
            otherwise, with the number of problems that would decide. "no control": no count-matched random keys were run
arm_like    criteria met: one masked sink is dependent; sinks stand at the start; attention does not come back to sinks when
            the middle of the prompt is cut (where that was run)
collapse    of an ARM ranked by its last row: about sinks only if hiding position 0 alone does half of it and hiding as many
            random keys does not
mechanism   confidence falls more where a token depended on the masked keys, and commits come later, both beyond what as many
            random keys do (95 % intervals); the delay is judged where commits per step are free, if that was run
weaker      under conditions that make sinks weaker, and
still       under those that hold them: whether they do it, and at what price (see control.py)
settings    points of a sweep that differ from the first (exact McNemar, Holm-corrected, at 5 %)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sinkscope.study.analysis import control, losses
from sinkscope.study.analysis.accuracy import WEAK
from sinkscope.study.analysis.decisions import decide
from sinkscope.study.analysis.losses import Found, Model
from sinkscope.study.analysis.rows import FirstKey, Interval, Likelihood, Verdict
from sinkscope.study.analysis.rows_traced import Dynamics, Heads, Mechanism
from sinkscope.study.analysis.wording import changed, gap, left_out, percent, rule

FEW = 0.2  # share of heads with sinks below which there are few
HALF = 0.5  # share of sinks at the start, of heads of one class
STRONG = 0.3  # share of the attention on key 0, as Gu et al. count a sink
FREE = 10  # problems with positions left open that a delay is judged from
RECOVERED = 0.5  # of the share of attention on sinks before the cut
CLASSES = {"static": "static", "moving": "moving", "flash": "flashing", "split": "split"}


def verdicts(tables: Mapping[str, Sequence[Any]], margin: float = 0.05) -> list[Verdict]:
    """A row per model and verdict; margin: in shares."""
    models = list(dict.fromkeys(row.model for name in ("pooled", "dynamics", "likelihood") for row in tables[name]))
    found: list[Verdict] = []
    for model in models:
        of = {name: [row for row in tables[name] if row.model == model] for name in TABLES}
        swept = list(dict.fromkeys(row.setting for row in [*of["pooled"], *of["dynamics"]]))
        here = {
            name: [row for row in rows if getattr(row, "setting", None) in (None, *swept[:1])]
            for name, rows in of.items()
        }
        at = f"At {swept[0]}: " if len(swept) > 1 else ""
        for judge in JUDGES:
            found += [_verdict(model, at, *one) for one in judge(Model(model, here, margin))]
        for judge in WHOLE:
            found += [_verdict(model, "", *one) for one in judge(Model(model, of, margin))]
    return found


def _verdict(model: str, at: str, name: str, value: str, clause: str, because: str) -> Verdict:
    return Verdict(model, name, value, at + because, f"{value}: {clause}")


def plain_dynamics(rows: Sequence[Dynamics]) -> Dynamics | None:
    """The row with nothing masked."""
    return next((row for row in rows if row.condition == "none"), None)


def judged_heads(row: Dynamics) -> Heads:
    """An ARM writes one row per step: its heads are judged by their columns so far, where those were measured."""
    return row.columns or row


def class_of(heads: Heads) -> str:
    have = 1 - heads.none
    if have <= FEW:
        return "few"
    for name, word in CLASSES.items():
        if getattr(heads, name) >= HALF * have:
            return word
    return "mixed"


def key_0(row: Dynamics) -> float:
    """Share of the attention on key 0, mean over layers."""
    return sum(layer.first_key for layer in row.layers) / max(len(row.layers), 1)


def place_of(row: Dynamics) -> str | None:
    start = row.places["start"]
    if start is None:
        return None
    return "start" if start > HALF or key_0(row) > STRONG else "spread"


def _sinks(of: Model) -> Found:
    row = plain_dynamics(of.rows("dynamics"))
    if row is None:
        return
    heads = judged_heads(row)
    view = ", by columns so far per row that sees the key" if row.columns else ""
    lives = "" if heads.lifetime is None else f"; a sink lives {heads.lifetime:.1f} steps on average"
    ways = ""
    if heads.moving:
        ways = f", {percent(heads.right)} of all heads to the right and {percent(heads.left)} to the left"
    value = class_of(heads)
    clause = (
        f"{percent(heads.static)} of heads static, {percent(heads.moving)} moving, {percent(heads.none)} without sinks"
    )
    yield (
        "sinks", value, clause,
        f"Of its heads {percent(heads.static)} have a static sink, {percent(heads.moving)} a moving one{ways}, "
        f"{percent(heads.flash)} flashes, {percent(heads.split)} different ones for masked and committed queries, and "
        f"{percent(heads.none)} none ({row.generations} generations, {rule(row)}{view}){lives}."
    )  # fmt: skip
    places, where = row.places, place_of(row)
    if where is not None:
        clause = f"{percent(places['start'])} of sinks in the first four positions, key 0 draws {percent(key_0(row))}"
        yield (
            "place", where, clause,
            f"{percent(places['first'])} of its sinks are at position 0, {percent(places['start'])} among the first four "
            f"positions, {percent(places['prompt'])} in the prompt, {percent(places['masked'])} on masks; key 0 draws "
            f"{percent(key_0(row))} of the attention."
        )  # fmt: skip


def _arm_like(of: Model) -> Found:
    signs: list[tuple[bool, str]] = []
    row = next((row for row in of.masked() if row.condition["k"] == 1), None)
    if row is not None and row.able is not None:
        signs.append((decide(row, of.margin, row.p_primary).said == "dependent", f"one masked sink: {changed(row)}"))
    before = plain_dynamics(of.rows("dynamics"))
    if before is not None and (where := place_of(before)) is not None:
        told = f"sinks at the start: {percent(before.places['start'])}"
        if (before.places["start"] or 0.0) <= HALF:  # too few of them: key 0's share decides
            told += f", key 0 draws {percent(key_0(before))} of the attention"
        signs.append((where == "start", told))
    cut = next((other for other in of.rows("dynamics") if _middle(other.condition)), None)
    if before is not None and cut is not None and before.absorption and cut.absorption is not None:
        ratio = cut.absorption / before.absorption
        signs.append((ratio < RECOVERED, f"attention on sinks after a cut in the middle: {percent(ratio)} of before"))
    if signs:
        met = f"{sum(sign for sign, _ in signs)} of {len(signs)}"
        because = "; ".join(f"{why} ({'yes' if sign else 'no'})" for sign, why in signs)
        value = f"is an ARM; criteria met: {met}" if of.causal else f"criteria met: {met}"
        clause = ", ".join(why.split(":")[0] for sign, why in signs if sign) or "none of them"
        yield "arm_like", value, clause, f"{because}.{_uncounted(row)}"


def _uncounted(row: Any) -> str:
    """A sentence about what the criterion of one masked sink leaves out, where it was run."""
    if row is not None and row.able is None:
        return f" What one masked sink costs is left out: no task reaches {percent(WEAK)} right."
    return left_out(row.weak) if row else ""


def _middle(label: str) -> bool:
    if not label.startswith("cut "):
        return False
    start, _, stop = label.removeprefix("cut ").partition("–")
    return 0 < float(start) < float(stop) < 1


READ = {"texts": "Held-out text", "answers": "The true answer"}


def _likelihood(of: Model) -> Found:
    for read, opening in READ.items():
        rows: list[Likelihood] = [row for row in of.rows("likelihood") if row.of == read]
        masked = [row for row in rows if row.condition["name"] not in ("none", "noop")]
        if not masked:
            continue
        base = next(row for row in rows if row.condition["name"] == "none")
        worst = min(masked, key=lambda row: row.difference)
        said = ", ".join(f"{row.label} {_nats(row)}" for row in masked)
        yield (
            "likelihood", f"worst under {worst.label}", f"{_nats(worst)} nats per token, n = {worst.n} {worst.of}",
            f"{opening} has {base.value:.2f} nats per token ({base.n} {base.of}, {base.tokens} tokens); change: {said}."
        )  # fmt: skip


def _nats(row: Likelihood) -> str:
    return f"{row.difference:+.2f} [{row.difference_low:+.2f}, {row.difference_high:+.2f}]"


def _first_key(of: Model) -> Found:
    rows: list[FirstKey] = of.rows("first_key")
    for row in rows:
        shares = row.layers
        late = shares[len(shares) * 2 // 5 :]
        mean = sum(late) / len(late)
        yield (
            "first_key", f"{mean:.2f}", f"share of attention on key 0 in layers {len(shares) * 2 // 5}–{len(shares) - 1}",
            f"Key 0 gets {mean:.2f} of the attention on average in layers {len(shares) * 2 // 5}–{len(shares) - 1}, "
            f"{sum(shares) / len(shares):.2f} over all layers, at most {max(shares):.2f} (layer {shares.index(max(shares))})."
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


def _mechanism(of: Model) -> Found:
    rows: list[Mechanism] = [row for row in of.rows("mechanism") if row.confidence_sinks_gap is not None]
    if not rows:
        return
    sure, late = [less_sure(row) for row in rows], [later(row) for row in rows]
    value = "both" if all(sure) and all(late) else "neither" if not any(sure) and not any(late) else "in part"
    when = f"later at {sum(map(bool, late))} of {len(rows)} K" if None not in late else "later: too few to say"
    clause = f"less sure at {sum(sure)} of {len(rows)} K, {when}, where tokens depended on sinks"
    yield "mechanism", value, clause, " ".join(map(_dependence, rows))


def _dependence(row: Mechanism) -> str:
    """Dream's confidence is an entropy with its sign turned: that is in nats, where others are probabilities."""
    scale = 1 if row.unit == "nats" else 100
    assert row.confidence_sinks_gap and row.confidence_gap_beyond_random
    assert row.delay_sinks_gap and row.delay_gap_beyond_random
    more, less = (scale * (getattr(row, f"confidence_sinks_{half}") or 0.0) for half in ("high", "low"))
    told = (
        f"K={row.k}: confidence {more:+.1f} {row.unit} where positions looked more at the masked sinks and {less:+.1f} "
        f"where less (gap {gap(row.confidence_sinks_gap, scale)}; {gap(row.confidence_gap_beyond_random, scale)} beyond "
        f"that under random keys). With one commit per step the halves can only change places: the one that looked more is "
        f"committed {gap(row.delay_sinks_gap)} steps later than the other ({gap(row.delay_gap_beyond_random)} beyond)"
    )
    if row.free_delay_sinks is not None and row.free_delay_sinks_gap is not None:
        told += f"; with commits by a threshold all positions come {gap(row.free_delay_sinks)} steps later"
        told += f" ({gap(row.free_delay_beyond_random)} beyond)" if row.free_delay_beyond_random else ""
        told += f", the half that looked more {gap(row.free_delay_sinks_gap)} more ({row.free_problems} problems left any open)"
    return f"{told}; {row.problems} problems."


TABLES = ("cells", "pooled", "settings", "dynamics", "mechanism", "likelihood", "first_key")
JUDGES = (
    _sinks,
    losses.masking,
    _arm_like,
    losses.collapse,
    losses.tasks,
    _mechanism,
    control.control,
)  # of the first point of a sweep
WHOLE = (losses.settings, _likelihood, _first_key)
