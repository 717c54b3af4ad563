"""The table of heads once more, with plain loops over plain numbers: slow, obvious, and only for comparison."""

import math
from statistics import fmean, pstdev
from typing import Any

from made_traces import GROUPS, full

from sinkscope.sinks.rules import Rule
from sinkscope.tracing import Trace

Row = dict[str, Any]


def mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def slow_head(trace: Trace, rule: Rule, layer: int, head: int, least: int = 4, support: float = 2.0) -> Row:
    """Every measure of one head of a diffusion trace whose rule counts all queries."""
    steps, size = trace.steps, trace.positions
    received, scores, sinks, mains = [], [], [], []
    for t in range(steps):
        column = full(trace)[t, layer, head].float().sum(0)
        queries = int(trace.queries[t].sum())
        received.append(column.tolist())
        scores.append(rule.scores(column, queries).tolist())
        marks = rule.marks(column, queries).tolist()
        sinks.append({j for j in range(size) if marks[j]})
        candidates = sorted(sinks[t]) or range(size)
        mains.append(max(candidates, key=lambda j: (scores[-1][j], -j)))
    present = [t for t in range(steps) if sinks[t]]
    lives = [(j, t) for j in range(size) for t in range(steps) if j in sinks[t] and (t == 0 or j not in sinks[t - 1])]
    lengths = []
    for j, t in lives:
        end = t
        while end + 1 < steps and j in sinks[end + 1]:
            end += 1
        lengths.append(end - t + 1)
    pairs = [(sinks[t], sinks[t + 1]) for t in range(steps - 1)]
    jumps = [mains[t + 1] - mains[t] for t in range(steps - 1) if sinks[t] and sinks[t + 1]]
    one_step = [
        not (t > 0 and mains[t] in sinks[t - 1]) and not (t + 1 < steps and mains[t] in sinks[t + 1]) for t in present
    ]
    row: Row = {
        "presence": len(present) / steps,
        "births": sum(len(b - a) for a, b in pairs),
        "deaths": sum(len(a - b) for a, b in pairs),
        "lives": len(lives),
        "lifetime": mean(lengths),
        "longest": max(lengths, default=None),
        "flashes": lengths.count(1),
        "one_step_share": (mean(one_step) if steps > 1 else 0.0) if present else None,
        "jaccard": mean([len(a & b) / len(a | b) for a, b in pairs if a | b]),
        "displacement": mean([abs(j) for j in jumps]),
        "moves": sum(j != 0 for j in jumps),
        "sinks": fmean(len(s) for s in sinks),
        "strength": fmean(scores[t][mains[t]] for t in range(steps)),
        "strength_peak": max(scores[t][mains[t]] for t in range(steps)),
        "absorption": fmean(sum(received[t][j] for j in sinks[t]) / sum(received[t]) for t in range(steps)),
    }
    row |= slow_line([mains[t] for t in present], present)
    home = max(range(size), key=lambda j: (sum(mains[t] == j for t in present), -j))
    row["home"] = home if present else None
    row["home_share"] = sum(home in s for s in sinks) / steps
    for name, half in (("early", present[: len(present) // 2]), ("late", present[len(present) // 2 :])):
        often = max(range(size), key=lambda j, half=half: (sum(mains[t] == j for t in half), -j))  # type: ignore[misc]
        row[f"home_{name}"] = often if half else None
    row["main_keys"] = len({mains[t] for t in present})
    row["standing"] = max(sum(j in s for s in sinks) for j in range(size)) / steps
    trend, one_step = row["trend"], row["one_step_share"]
    flash = (
        one_step is not None and one_step >= 0.5 and not (len(present) >= 6 and trend is not None and abs(trend) >= 0.8)
    )
    row["relocating"] = row["main_keys"] >= 2 and row["standing"] < 0.8 and not flash
    row |= slow_centres(scores, sinks, present)
    row |= slow_distances(trace, mains, present)
    entropies = [-sum(p * math.log(p) for v in values if (p := v / sum(values)) > 0) for values in received]
    row["entropy"] = fmean(entropies)
    row["entropy_relative"] = fmean(e / math.log(size) for e in entropies)
    row |= slow_split(trace, rule, layer, head, least, support)
    row["value_ratio"] = slow_value_ratio(trace, layer, head, sinks)
    row["agreement"] = slow_agreement(trace, layer, mains, present)
    return row


def slow_line(positions: list[int], steps: list[int]) -> Row:
    if len(steps) < 2:
        return {"drift": None, "trend": None}
    step_mean, place_mean = fmean(steps), fmean(positions)
    product = sum((t - step_mean) * (p - place_mean) for t, p in zip(steps, positions, strict=True))
    step_square = sum((t - step_mean) ** 2 for t in steps)
    place_square = sum((p - place_mean) ** 2 for p in positions)
    trend = product / math.sqrt(step_square * place_square) if place_square else None
    return {"drift": product / step_square, "trend": trend}


def slow_centres(scores: list[list[float]], sinks: list[set[int]], present: list[int]) -> Row:
    centres, spreads = [], []
    for t in present:
        total = sum(scores[t][j] for j in sinks[t])
        centre = sum(j * scores[t][j] for j in sinks[t]) / total
        centres.append(centre)
        spreads.append(sum((j - centre) ** 2 * scores[t][j] for j in sinks[t]) / total)
    return {"spatial_variance": mean(spreads), "temporal_variance": pstdev(centres) ** 2 if centres else None}


def slow_distances(trace: Trace, mains: list[int], present: list[int]) -> Row:
    found: dict[str, list[float]] = {"block": [], "rightmost_mask": [], "frontier": []}
    for t in present:
        start, stop = trace.blocks[t].tolist()
        key = mains[t]
        found["block"].append(key - start if key < start else key - stop + 1 if key >= stop else 0)
        masks = [j for j in range(trace.positions) if trace.canvas[t, j] == trace.mask_id]
        if masks:
            found["rightmost_mask"].append(key - masks[-1])
            found["frontier"].append(key - masks[0])
    row: Row = {}
    for name, values in found.items():
        row[f"to_{name}"] = mean(values)
        row[f"to_{name}_deviation"] = pstdev(values) if values else None
    return row


def slow_split(trace: Trace, rule: Rule, layer: int, head: int, least: int, support: float) -> Row:
    differ = []
    for t in range(trace.steps):
        kinds = []
        for group in ("masked", "committed"):
            g = GROUPS.index(group)
            queries = int(trace.queries[t, g])
            if queries < least:
                break
            column = full(trace)[t, layer, head, g].float()
            whole = column * trace.positions / queries
            marks = rule.marks(whole, trace.positions).tolist()
            sinks = [j for j in range(trace.positions) if marks[j]]
            favourite = int(rule.scores(whole, trace.positions).argmax())
            kinds.append((sinks, favourite, float(column[favourite])))
        if len(kinds) == 2:
            (sinks, key, drawn), (other_sinks, other_key, other_drawn) = kinds
            own = key in sinks and key not in other_sinks and drawn >= support
            other_own = other_key in other_sinks and other_key not in sinks and other_drawn >= support
            differ.append(own and other_own)
    return {"split_share": mean(differ), "split_steps": len(differ)}


def slow_value_ratio(trace: Trace, layer: int, head: int, sinks: list[set[int]]) -> float | None:
    if trace.value_norms is None:
        return None
    ratios = []
    per_norm = full(trace).shape[2] // trace.value_norms.shape[2]
    for t, there in enumerate(sinks):
        norms = trace.value_norms[t, layer, head // per_norm].tolist()
        others = [norms[j] for j in range(trace.positions) if j not in there]
        if there and others:
            ratios.append(fmean(norms[j] for j in there) / fmean(others))
    return mean(ratios)


def slow_agreement(trace: Trace, layer: int, mains: list[int], present: list[int]) -> float | None:
    shares = []
    for t in present:
        tops = [int(full(trace)[t, other].float().sum(1).mean(0).argmax()) for other in range(trace.layers)]
        others = [top for other, top in enumerate(tops) if other != layer]
        if others:
            shares.append(fmean(top == mains[t] for top in others))
    return mean(shares)
