"""The tables of sinks: each one, how scores are spread (Fig. 3, 10), and which tokens they are (Table 2)."""

import math
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from sinkscope.errors import RuleError, TraceError
from sinkscope.sinks.kinds import ROLE_KIND, role_names
from sinkscope.sinks.rules import Columns, Rule, Threshold
from sinkscope.statistics import resampled
from sinkscope.tracing.trace import Trace, single_threaded


@single_threaded
def find(trace: Trace, rule: Rule | None = None) -> pl.DataFrame:
    """Every sink of a trace: step, layer, head, position, id, token, kind, score, and the unit that the score is in."""
    rule = rule or trace.default_rule
    places, values = [], []
    for layers, scores, marks, _ in trace.marks_by_layer(rule):
        place = marks.nonzero()
        values.append(scores[marks])
        place[:, 1] += layers.start
        places.append(place)
    place, value = torch.cat(places), torch.cat(values)
    if trace.layers > 1:  # chunks came layer by layer; readers expect the steps in order
        order = torch.from_numpy(np.lexsort([column.numpy() for column in place.unbind(-1)[::-1]]))
        place, value = place[order], value[order]
    return _keys(trace, *place.unbind(-1)).with_columns(score=pl.Series(value.numpy()), **named(rule))


def received(trace: Trace, group: str, unit: str) -> pl.DataFrame:
    """What each key that exists received, as rows."""
    scores = trace.scores(group, unit)  # [step, layer, head, key]
    there = trace.alive()[:, None, None].expand(scores.shape)
    frame = _keys(trace, *there.nonzero().unbind(-1)).with_columns(received=pl.Series(scores[there].numpy()))
    return frame.with_columns(unit=pl.lit(unit), group=pl.lit(group))


def _keys(trace: Trace, step: Tensor, layer: Tensor, head: Tensor, position: Tensor) -> pl.DataFrame:
    """A row per key of a head at a step, with the token that stood there."""
    places = {"step": step, "layer": layer, "head": head, "position": position}
    known, codes = np.unique(trace.canvas.numpy(), return_inverse=True)
    code = codes.reshape(trace.canvas.shape)[step, position]
    described = [trace.vocabulary.get(i, (f"#{i}", "unknown")) for i in known.tolist()]
    texts = pl.Series(
        [text.encode("utf-8", "replace").decode() for text, _ in described]
    )  # a lone surrogate is no text
    kinds = pl.Series([*(kind for _, kind in described), ROLE_KIND])
    role = role_names(trace.canvas.numpy(), trace.vocabulary)[step, position]
    return pl.DataFrame({name: column.numpy() for name, column in places.items()}).with_columns(
        id=pl.Series(known[code]),
        token=texts.gather(code),
        kind=kinds.gather(np.where(role, len(known), code)),
    )


def named(rule: Rule) -> dict[str, pl.Expr]:
    """The unit, the group and the rule stand in every table: a score without them says nothing."""
    return {"unit": pl.lit(rule.unit), "group": pl.lit(rule.group), "rule": pl.lit(rule.name)}


PAPER_EPSILONS = tuple(range(11))  # Fig. 10 runs from 0 to 10


@single_threaded
def sweep(
    trace: Trace,
    epsilons: Sequence[float] = PAPER_EPSILONS,
    units: Sequence[str] = ("sum", "percent"),
    group: str = "all",
) -> pl.DataFrame:
    """Share of the keys that are *not* sinks against epsilon, in each unit: unit, epsilon, sinks, keys, non_sinks.

    Every (step, layer, head, key) of a step in which the group has queries counts once.
    """
    rules = [Threshold(float(epsilon), unit=unit, group=group) for unit in units for epsilon in epsilons]
    if not rules:
        raise RuleError("A sweep needs at least one epsilon and one unit, and got none: name some.")
    queries, alive, _ = trace.rule_columns(group)
    sinks = np.zeros(len(rules), dtype=np.int64)
    for _, (received,) in trace.columns_by_layer(group):
        columns = Columns.of(received, queries, alive)
        # Missing keys and steps without queries are 0, which is never above a limit.
        sinks += [int(rule.mark(columns).sum()) for rule in rules]
    keys = int((trace.alive() & (queries > 0)[:, None]).sum()) * trace.layers * trace.heads_count
    frame = pl.DataFrame({"unit": [rule.unit for rule in rules], "epsilon": [rule.epsilon for rule in rules]})
    return frame.with_columns(sinks=pl.Series(sinks), keys=pl.lit(keys, pl.Int64)).with_columns(
        non_sinks=1 - pl.col("sinks") / pl.col("keys"), group=pl.lit(group)
    )


@single_threaded
def histogram(trace: Trace, bins: int = 50, unit: str = "sum", group: str = "all") -> pl.DataFrame:
    """How many keys have which score: low, high (exclusive, but for the last bin), count, share, and the unit.

    The bins are equal and run from 0 to the largest score, rounded up to a whole number except in the unit `mean`.
    """
    if bins < 1:
        raise RuleError(f"A histogram needs at least one bin, not {bins}.")
    rule = Threshold(0.0, unit=unit, group=group)
    queries, alive, _ = trace.rule_columns(group)
    counted = (trace.alive() & (queries > 0)[:, None])[:, None, None, :]
    top = 0.0
    for _, (received,) in trace.columns_by_layer(group):
        top = max(top, float(rule.scores(received, queries, alive).amax()))
    top = (top if unit == "mean" else math.ceil(top)) or 1.0
    count = np.zeros(bins, dtype=np.int64)
    for _, (received,) in trace.columns_by_layer(group):
        scores = rule.scores(received, queries, alive)
        values = scores if bool(counted.all()) else scores[counted.expand_as(scores)]
        place = (values.flatten() * (bins / top)).int().clamp_(max=bins - 1)
        count += torch.bincount(place, minlength=bins).numpy()
    edges = np.linspace(0.0, top, bins + 1)
    return pl.DataFrame({"low": edges[:-1], "high": edges[1:], "count": count}).with_columns(
        share=pl.col("count") / max(1, int(count.sum())), unit=pl.lit(unit), group=pl.lit(group)
    )


# ---- which tokens are sinks (Table 2), and whether that is more often than they occur at all ----

DRAWS = 2000  # of the bootstrap
Counts = npt.NDArray[np.float64]  # [generation, row]
Entry = tuple[int, str]  # id and kind


@single_threaded
def token_shares(traces: Trace | Sequence[Trace], rule: Rule | None = None, seed: int = 0) -> pl.DataFrame:
    """Share of the sinks that falls on each token, its base rate, and the ratio of the two.

    A sink counts once a (step, layer, head); `base` is how often the token stands on the canvas, a count a (step,
    position). `enrichment` = share / base: at 1 the token is a sink as often as its frequency alone would make it.
    low, high: 95 % bootstrap intervals over generations (whole generations are drawn, since the sinks within one
    depend on each other); null for a single generation. The name of a role between chat markers is part of the template:
    it has a row apart from the same word in a sentence.
    """
    several = list(traces) if isinstance(traces, Sequence) else [traces]
    if not several:
        raise TraceError("Expected at least one trace, got none: trace a generation first.")
    rule = rule or several[0].default_rule
    vocabulary = _common_vocabulary(several)
    counted = [sink_counts(trace, rule) for trace in several]
    entries = sorted({entry for counts in counted for entry in counts})
    rows = np.array([[counts.get(entry, (0.0, 0.0)) for entry in entries] for counts in counted])
    sinks, base = rows.reshape(len(counted), len(entries), 2).transpose(2, 0, 1)  # [generation, entry] each
    texts = [vocabulary.get(i, (f"#{i}",))[0] for i, _ in entries]
    keys = {"id": [i for i, _ in entries], "token": texts, "kind": [kind for _, kind in entries]}
    frame = pl.DataFrame({**keys, **_shares(sinks, base, seed)})
    # The share first, as in the paper's table; the base rate orders tokens that were never sinks.
    return frame.sort("share", "base", *keys, descending=[True, True, False, False, False]).with_columns(
        generations=pl.lit(len(several)), **named(rule)
    )


def sink_counts(trace: Trace, rule: Rule) -> dict[Entry, tuple[float, float]]:
    """(id, kind) → how often it was a sink (a count a step, layer and head) and how often it was there (a count a step)."""
    there = (trace.alive() & (trace.query_count(rule.group) > 0)[:, None]).numpy()
    marked = np.zeros(there.shape)
    for _, _, marks, _ in trace.marks_by_layer(rule):
        marked += marks.sum((1, 2)).numpy()
    canvas = trace.canvas[:-1].numpy()
    codes, place = np.unique(2 * canvas[there] + role_names(canvas, trace.vocabulary)[there], return_inverse=True)
    weights = marked[there], np.ones(len(place))
    sinks, base = (np.bincount(place, weight, minlength=len(codes)).tolist() for weight in weights)
    return {
        (code // 2, ROLE_KIND if code % 2 else trace.vocabulary.get(code // 2, ("", "unknown"))[1]): (sinks[i], base[i])
        for i, code in enumerate(codes.tolist())
    }


def _common_vocabulary(traces: Sequence[Trace]) -> dict[int, tuple[str, str]]:
    vocabulary: dict[int, tuple[str, str]] = {}
    for trace in traces:
        for i, entry in trace.vocabulary.items():
            if vocabulary.setdefault(i, entry) != entry:
                raise TraceError(
                    f"Traces of one vocabulary were expected, but token {i} is {vocabulary[i][0]!r} in one and "
                    f"{entry[0]!r} in another: count the models apart."
                )
    return vocabulary


def _shares(sinks: Counts, base: Counts, seed: int) -> dict[str, pl.Series]:
    """Shares over all generations together, with intervals; sinks and base are `[generation, row]`."""
    generations, rows = sinks.shape
    share, enrichment = _ratios(sinks.sum(0), base.sum(0))
    limits = np.full((2, 2, rows), np.nan)  # [share or enrichment, low or high, row]
    if generations > 1:
        weight = resampled(np.ones(generations), DRAWS, seed)
        with warnings.catch_warnings():  # a token may be in no draw at all: its limits stay NaN
            warnings.simplefilter("ignore", RuntimeWarning)
            for i, drawn in enumerate(_ratios(weight @ sinks, weight @ base)):
                limits[i] = np.nanquantile(drawn, [0.025, 0.975], axis=0)
    columns = {
        "share": share,
        "share_low": limits[0, 0],
        "share_high": limits[0, 1],
        "base": _part(base.sum(0)),
        "enrichment": enrichment,
        "enrichment_low": limits[1, 0],
        "enrichment_high": limits[1, 1],
    }
    count = pl.Series(sinks.sum(0).astype(np.int64))
    return {"sinks": count, **{name: pl.Series(values).fill_nan(None) for name, values in columns.items()}}


def _ratios(sinks: Counts, base: Counts) -> tuple[Counts, Counts]:
    share, rate = _part(sinks), _part(base)
    return share, np.divide(share, rate, out=np.full(share.shape, np.nan), where=rate > 0)


def _part(counts: Counts) -> Counts:
    """Counts as parts of their sum, along the last axis; NaN where nothing was counted."""
    total: Counts = counts.sum(-1, keepdims=True)
    empty: Counts = np.full(counts.shape, np.nan)
    return np.divide(counts, total, out=empty, where=total > 0)
