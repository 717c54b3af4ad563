"""Verdicts by stated rules; every sentence is made from the numbers and has them in it.

static / moving / mixed / few   of the heads that have sinks, at least half are static; or more than half moving or flash
                                (split heads count as neither); "few": no more than a fifth of the heads have sinks at all
robust                          pooled over tasks, masking the top K costs at most 5 points, and is not worse than masking as
                                many random keys (exact McNemar, Holm-corrected across K, at 5 %); "too weak to say" where
                                fewer than a tenth of the answers are right with nothing masked
ARM-like                        signs: one masked sink costs more than 5 points; most sinks stand at the start; sinks do not
                                come back when the middle of the prompt is cut (where that was run)
collapse                        of an ARM ranked by its last row: about sinks only if hiding position 0 alone does half of it
                                and hiding as many random keys does not
mechanism                       confidence falls more, and commits come later, where a token depended on the masked keys (95 %
                                interval of the gap between the halves excludes 0)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LIMIT = 0.05  # points of accuracy, as a share
LEVEL = 0.05  # of p
WEAK = 0.1  # accuracy below which there is too little to lose
FEW = 0.2  # share of heads with sinks below which there are few
START = 0.5  # share of sinks at the start above which they are only there
RECOVERED = 0.5  # of the share of attention on sinks before the cut

Rows = list[dict[str, Any]]


def verdicts(results: dict[str, Any]) -> Rows:
    """A row a model and verdict: name, value, because."""
    models = list(
        dict.fromkeys(row["model"] for row in [*results["pooled"], *results["dynamics"], *results["likelihood"]])
    )
    found: Rows = []
    for model in models:
        of = {name: [row for row in results[name] if row["model"] == model] for name in TABLES}
        for judge in JUDGES:
            found += [{"model": model, "name": name, "value": value, "because": why} for name, value, why in judge(of)]
    return found


def _plain(rows: Rows, label: str = "none") -> dict[str, Any] | None:
    """The row of the first setting under a condition."""
    return next((row for row in rows if row["condition"] == label), None)


def _sinks(of: dict[str, Rows]) -> Iterator[tuple[str, str, str]]:
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
        f", {_percent(row['right'])} of all heads to the right and {_percent(row['left'])} to the left" if going else ""
    )
    yield (
        "sinks",
        value,
        (
            f"Of its heads {_percent(row['static'])} have a static sink, {_percent(row['moving'])} a moving one{ways}, "
            f"{_percent(row['flash'])} flashes, {_percent(row['split'])} different ones for masked and committed queries, and "
            f"{_percent(row['none'])} none ({row['generations']} generations, {_rule(row)}){lives}."
        ),
    )
    places = row["places"]
    if places["start"] is not None:
        where = "start" if places["start"] > START else "spread"
        yield (
            "place",
            where,
            (
                f"{_percent(places['first'])} of its sinks are at position 0, {_percent(places['start'])} among the first four "
                f"positions, {_percent(places['prompt'])} in the prompt, {_percent(places['masked'])} on masks."
            ),
        )


def _robust(of: dict[str, Rows]) -> Iterator[tuple[str, str, str]]:
    causal = any(row["condition"]["rows"] == "last" for row in of["pooled"])
    for rank in ("clean", "as_run"):
        rows = [
            row for row in _first_setting(of["pooled"])
            if row["condition"]["name"] == "mask_sinks" and row["condition"]["rank"] == rank
            and row["condition"]["rows"] == ("last" if causal else "all") and not row["condition"].get("above")
        ]  # fmt: skip
        if not rows:
            continue
        base = next(
            row for row in of["pooled"] if row["condition"]["name"] == "none" and row["setting"] == rows[0]["setting"]
        )
        why = f"{100 * base['accuracy']:.1f} % right with nothing masked (n = {base['n']}). " + " ".join(
            map(_masked, rows)
        )
        if base["accuracy"] < WEAK:
            yield f"masking_{rank}", "too weak to say", why
            continue
        failing = [row["condition"]["k"] for row in rows if not _holds(row)]
        upto = [row["condition"]["k"] for row in rows if not failing or row["condition"]["k"] < min(failing)]
        value = "robust" if not failing else f"robust up to K={max(upto)}" if upto else "dependent"
        yield f"masking_{rank}", value, why


def _holds(row: dict[str, Any]) -> bool:
    control = row["controls"].get("count")
    worse = control is not None and control["difference"] < 0 and control["p_holm"] < LEVEL
    return bool(row["difference"] >= -LIMIT and not worse)


def _masked(row: dict[str, Any]) -> str:
    words = f"K={row['condition']['k']}: {_points(row['difference'])} {_span(row)}, p {_p(row['p_holm'])}"
    for match, name in (("count", "as many random keys"), ("mass", "random keys of the same mass")):
        if control := row["controls"].get(match):
            gap = row["difference"] - control["difference"]
            words += f"; {name} {_points(gap)} (sinks against them {_points(control['difference'])} {_span(control)})"
    taken = "" if row["mass_share"] is None else f" ({_percent(row['mass_share'])} of attention taken)"
    return words + taken + "."


def _arm_like(of: dict[str, Rows]) -> Iterator[tuple[str, str, str]]:
    signs: list[tuple[bool, str]] = []
    one = next(
        (row for row in _first_setting(of["pooled"]) if row["condition"]["name"] == "mask_sinks" and row["condition"]["k"] == 1
         and row["condition"]["rank"] == "clean" and row["condition"]["rows"] == "all"), None,
    )  # fmt: skip
    if one is not None:
        signs.append((one["difference"] < -LIMIT, f"one masked sink: {_points(one['difference'])} {_span(one)}"))
    row = _plain(of["dynamics"])
    if row is not None and row["places"]["start"] is not None:
        signs.append((row["places"]["start"] > START, f"sinks at the start: {_percent(row['places']['start'])}"))
    cut = next((other for other in of["dynamics"] if other["condition"].startswith("cut") and _middle(other)), None)
    if row is not None and cut is not None and row["absorption"] and cut["absorption"] is not None:
        ratio = cut["absorption"] / row["absorption"]
        signs.append((ratio < RECOVERED, f"attention on sinks after a cut in the middle: {_percent(ratio)} of before"))
    if signs:
        count = sum(sign for sign, _ in signs)
        yield (
            "arm_like",
            f"{count} of {len(signs)} signs",
            "; ".join(f"{why} ({'yes' if s else 'no'})" for s, why in signs) + ".",
        )


def _middle(row: dict[str, Any]) -> bool:
    start, _, stop = row["condition"].removeprefix("cut ").partition("–")
    return 0 < float(start) < float(stop) < 1


def _collapse(of: dict[str, Rows]) -> Iterator[tuple[str, str, str]]:
    rows = _first_setting(of["pooled"])

    def find(name: str, **wanted: Any) -> dict[str, Any] | None:
        fits = (r for r in rows if r["condition"]["name"] == name)
        return next((r for r in fits if all(r["condition"].get(key) == value for key, value in wanted.items())), None)

    last = find("mask_sinks", k=1, rows="last", rank="clean")
    first = find("mask_positions", since="second") or find("mask_positions")
    random = find("mask_random", k=1, rows="last", match="count") or find("mask_random", k=1, match="count")
    column = find("mask_sinks", k=1, rows="all", rank="clean")
    if last is None or first is None or random is None:
        return
    told = [("the last row's top key", last), ("position 0 alone", first), ("one random key", random)]
    told += [("the column's top key", column)] if column else []
    words = ", ".join(f"{name} {_points(row['difference'])} {_span(row)}" for name, row in told)
    if last["difference"] >= -LIMIT:
        value = "no collapse"
    else:
        sinks = first["difference"] <= last["difference"] / 2 and random["difference"] > last["difference"] / 2
        value = "about sinks" if sinks else "not about sinks alone"
    yield "collapse", value, f"Masked at every step after the first: {words}."


def _likelihood(of: dict[str, Rows]) -> Iterator[tuple[str, str, str]]:
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


def _first_key(of: dict[str, Rows]) -> Iterator[tuple[str, str, str]]:
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


def _mechanism(of: dict[str, Rows]) -> Iterator[tuple[str, str, str]]:
    rows = [row for row in of["mechanism"] if "confidence_sinks_gap" in row]
    if not rows:
        return
    sure = [row["confidence_sinks_gap"]["high"] < 0 for row in rows]
    late = [row["delay_sinks_gap"]["low"] > 0 for row in rows]
    value = "both" if all(sure) and all(late) else "neither" if not any(sure) and not any(late) else "in part"
    told = " ".join(
        f"K={row['k']}: confidence {_points(row['confidence_sinks_high'])} where positions looked more at the masked sinks and "
        f"{_points(row['confidence_sinks_low'])} where less (gap {_gap(row['confidence_sinks_gap'], 100)} points; random keys "
        f"{_gap(row['confidence_random_gap'], 100)}), commits {_gap(row['delay_sinks_gap'])} steps later (random keys "
        f"{_gap(row['delay_random_gap'])}), {row['problems']} problems."
        for row in rows
    )
    yield "mechanism", value, told


def _settings(of: dict[str, Rows]) -> Iterator[tuple[str, str, str]]:
    if of["settings"]:
        told = ", ".join(f"{row['setting']} {_points(row['difference'])} {_span(row)}" for row in of["settings"])
        moved = [row for row in of["settings"] if row["p"] < LEVEL]
        yield (
            "settings",
            f"{len(moved)} of {len(of['settings'])} differ",
            f"Against {of['settings'][0]['against']}: {told}.",
        )


def _battery(of: dict[str, Rows]) -> Iterator[tuple[str, str, str]]:
    """Is the loss the same for every kind of task? Spread of the differences, beside what the intervals allow."""
    rows = [
        row for row in _first_setting(of["cells"])
        if row["condition"]["name"] == "mask_sinks" and row["condition"]["rank"] == "clean" and row["condition"]["rows"] == "all"
        and not row["condition"].get("above")
    ]  # fmt: skip
    if len({row["task"] for row in rows}) < 3:
        return
    for k in sorted({row["condition"]["k"] for row in rows}):
        mine = sorted((row for row in rows if row["condition"]["k"] == k), key=lambda row: float(row["difference"]))
        apart = mine[0]["difference_high"] < mine[-1]["difference_low"]
        told = ", ".join(f"{row['task']} {_points(row['difference'])} {_span(row)}" for row in mine)
        yield f"tasks_k{k}", "uneven" if apart else "even within the intervals", f"K={k}: {told}."


def _first_setting(rows: Rows) -> Rows:
    return [row for row in rows if row["setting"] == rows[0]["setting"]] if rows else []


def _rule(row: dict[str, Any]) -> str:
    return f"{row['rule']} {row['epsilon']:g} in {row['unit']}" if row["epsilon"] is not None else str(row["rule"])


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _span(row: dict[str, Any]) -> str:
    return f"[{100 * row['difference_low']:+.1f}, {100 * row['difference_high']:+.1f}]"


def _gap(gap: dict[str, float], scale: float = 1.0) -> str:
    return f"{scale * gap['value']:+.2f} [{scale * gap['low']:+.2f}, {scale * gap['high']:+.2f}]"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


TABLES = ("cells", "pooled", "settings", "dynamics", "mechanism", "likelihood", "first_key")
JUDGES = (_sinks, _robust, _arm_like, _collapse, _battery, _settings, _mechanism, _likelihood, _first_key)
