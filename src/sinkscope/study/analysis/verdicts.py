"""Verdicts by stated rules; every sentence is made from the numbers and has them in it.

Pooled numbers are over those tasks of which at least a tenth is right with nothing masked; the sentence names the others,
and the verdict is "too weak to say" where there is no such task. Of a sweep the first point is judged, and named.

static / moving / mixed / few   of the heads that have sinks, at least half are static; or more than half moving or flash
                                (split heads count as neither); "few": no more than a fifth of the heads have sinks at all
robust                          masking the top K costs at most 5 points and at most a fifth of the right answers, and is not
                                worse than masking as many random keys (exact McNemar, Holm-corrected across K, at 5 %);
                                "no control" is added where those were not run
ARM-like                        signs: one masked sink costs more than 5 points; most sinks stand at the start; sinks do not
                                come back when the middle of the prompt is cut (where that was run)
collapse                        of an ARM ranked by its last row: about sinks only if hiding position 0 alone does half of it
                                and hiding as many random keys does not
mechanism                       confidence falls more, and commits come later, where a token depended on the masked keys: the
                                95 % interval of the gap between the halves excludes 0, and so does that of the gap less the
                                one under as many random keys
settings                        points of a sweep that differ from the first (exact McNemar, Holm-corrected, at 5 %)
"""

from __future__ import annotations

from typing import Any

from sinkscope.study.analysis import losses
from sinkscope.study.analysis.accuracy import WEAK
from sinkscope.study.analysis.losses import LIMIT, Found, Row, Rows, able, plainly_masked
from sinkscope.study.analysis.wording import changed, gap, left_out, percent, rule

FEW = 0.2  # share of heads with sinks below which there are few
START = 0.5  # share of sinks at the start above which they are only there
RECOVERED = 0.5  # of the share of attention on sinks before the cut


def verdicts(results: dict[str, Any]) -> Rows:
    """A row a model and verdict: name, value, because."""
    models = list(
        dict.fromkeys(row["model"] for row in [*results["pooled"], *results["dynamics"], *results["likelihood"]])
    )
    found: Rows = []
    for model in models:
        of = {name: [row for row in results[name] if row["model"] == model] for name in TABLES}
        swept = list(dict.fromkeys(row["setting"] for row in [*of["pooled"], *of["dynamics"]]))
        here = {name: [row for row in rows if row.get("setting") in (None, *swept[:1])] for name, rows in of.items()}
        at = f"At {swept[0]}: " if len(swept) > 1 else ""
        for judge in JUDGES:
            found += [_verdict(model, name, value, at + why) for name, value, why in judge(here)]
        for judge in WHOLE:
            found += [_verdict(model, name, value, why) for name, value, why in judge(of)]
    return found


def _verdict(model: str, name: str, value: str, because: str) -> Row:
    return {"model": model, "name": name, "value": value, "because": because}


def _plain(rows: Rows, label: str = "none") -> Row | None:
    """The row of a condition."""
    return next((row for row in rows if row["condition"] == label), None)


def _sinks(of: dict[str, Rows]) -> Found:
    row = _plain(of["dynamics"])
    if row is None:
        return
    have = 1 - row["none"]
    going = row["moving"] + row["flash"]
    if have <= FEW:
        value = "few"
    else:
        static, moving = row["static"] >= have / 2, going > have / 2
        value = "static" if static else "moving" if moving else "mixed"
    lives = "" if row["lifetime"] is None else f"; a sink lives {row['lifetime']:.1f} steps on average"
    ways = (
        f", {percent(row['right'])} of all heads to the right and {percent(row['left'])} to the left" if going else ""
    )
    yield (
        "sinks",
        value,
        (
            f"Of its heads {percent(row['static'])} have a static sink, {percent(row['moving'])} a moving one{ways}, "
            f"{percent(row['flash'])} flashes, {percent(row['split'])} different ones for masked and committed queries, and "
            f"{percent(row['none'])} none ({row['generations']} generations, {rule(row)}){lives}."
        ),
    )
    places = row["places"]
    if places["start"] is not None:
        where = "start" if places["start"] > START else "spread"
        yield (
            "place",
            where,
            (
                f"{percent(places['first'])} of its sinks are at position 0, {percent(places['start'])} among the first four "
                f"positions, {percent(places['prompt'])} in the prompt, {percent(places['masked'])} on masks."
            ),
        )


def _arm_like(of: dict[str, Rows]) -> Found:
    signs: list[tuple[bool, str]] = []
    row = next((row for row in plainly_masked(of["pooled"], "clean") if row["condition"]["k"] == 1), None)
    if row is not None and row["able"]:
        signs.append((able(row)["difference"] < -LIMIT, f"one masked sink: {changed(able(row))}"))
    before = _plain(of["dynamics"])
    if before is not None and before["places"]["start"] is not None:
        signs.append((before["places"]["start"] > START, f"sinks at the start: {percent(before['places']['start'])}"))
    cut = next((other for other in of["dynamics"] if other["condition"].startswith("cut") and _middle(other)), None)
    if before is not None and cut is not None and before["absorption"] and cut["absorption"] is not None:
        ratio = cut["absorption"] / before["absorption"]
        signs.append((ratio < RECOVERED, f"attention on sinks after a cut in the middle: {percent(ratio)} of before"))
    if signs:
        count = sum(sign for sign, _ in signs)
        told = "; ".join(f"{why} ({'yes' if sign else 'no'})" for sign, why in signs)
        yield "arm_like", f"{count} of {len(signs)} signs", f"{told}.{_uncounted(row)}"


def _uncounted(row: Row | None) -> str:
    """A sentence about what the sign of one masked sink leaves out, where it was run."""
    if row is not None and not row["able"]:
        return f" What one masked sink costs is left out: no task reaches {percent(WEAK)} right."
    return left_out(row["weak"]) if row else ""


def _middle(row: Row) -> bool:
    start, _, stop = row["condition"].removeprefix("cut ").partition("–")
    return 0 < float(start) < float(stop) < 1


def _likelihood(of: dict[str, Rows]) -> Found:
    rows = [row for row in of["likelihood"] if row["condition"]["name"] not in ("none", "noop")]
    if not rows:
        return
    base = next(row for row in of["likelihood"] if row["condition"]["name"] == "none")
    worst = min(rows, key=lambda row: float(row["difference"]))
    said = ", ".join(
        f"{row['label']} {row['difference']:+.2f} [{row['difference_low']:+.2f}, {row['difference_high']:+.2f}]"
        for row in rows
    )
    yield (
        "likelihood",
        f"worst under {worst['label']}",
        (
            f"Held-out text has {base['value']:.2f} nats a token ({base['n']} texts, {base['tokens']} tokens); change: {said}."
        ),
    )


def _first_key(of: dict[str, Rows]) -> Found:
    for row in of["first_key"]:
        shares = row["layers"]
        late = shares[len(shares) * 2 // 5 :]
        yield (
            "first_key",
            f"{sum(late) / len(late):.2f}",
            (
                f"Key 0 gets {sum(late) / len(late):.2f} of the attention on average in layers {len(shares) * 2 // 5}–"
                f"{len(shares) - 1}, {sum(shares) / len(shares):.2f} over all layers, at most {max(shares):.2f} "
                f"(layer {shares.index(max(shares))})."
            ),
        )


def _mechanism(of: dict[str, Rows]) -> Found:
    rows = [row for row in of["mechanism"] if "confidence_sinks_gap" in row]
    if not rows:
        return
    sure = [row["confidence_sinks_gap"]["high"] < 0 and row["confidence_gap_beyond_random"]["high"] < 0 for row in rows]
    late = [row["delay_sinks_gap"]["low"] > 0 and row["delay_gap_beyond_random"]["low"] > 0 for row in rows]
    value = "both" if all(sure) and all(late) else "neither" if not any(sure) and not any(late) else "in part"
    yield "mechanism", value, " ".join(map(_dependence, rows))


def _dependence(row: Row) -> str:
    """Dream's confidence is an entropy with its sign turned: that is in nats, where others are probabilities."""
    scale = 1 if row["unit"] == "nats" else 100
    more, less = (scale * row[f"confidence_sinks_{half}"] for half in ("high", "low"))
    return (
        f"K={row['k']}: confidence {more:+.1f} {row['unit']} where positions looked more at the masked sinks and {less:+.1f} "
        f"where less (gap {gap(row['confidence_sinks_gap'], scale)}; {gap(row['confidence_gap_beyond_random'], scale)} beyond "
        f"that under random keys), commits {gap(row['delay_sinks_gap'])} steps later "
        f"({gap(row['delay_gap_beyond_random'])} beyond), {row['problems']} problems."
    )


TABLES = ("cells", "pooled", "settings", "dynamics", "mechanism", "likelihood", "first_key")
JUDGES = (_sinks, losses.masking, _arm_like, losses.collapse, losses.tasks, _mechanism)  # of the first point of a sweep
WHOLE = (losses.settings, _likelihood, _first_key)
