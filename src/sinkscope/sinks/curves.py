"""How scores are spread: the share of non-sinks against epsilon (Fig. 10) and the histogram of scores (Fig. 3)."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
import torch

from sinkscope.errors import RuleError
from sinkscope.sinks.columns import TraceLike, alive_keys, columns_by_layer, missing_keys, on_one_core, query_count
from sinkscope.sinks.rules import Columns, Threshold

PAPER_EPSILONS = tuple(range(11))  # Fig. 10 runs from 0 to 10


@on_one_core
def sweep(
    trace: TraceLike,
    epsilons: Sequence[float] = PAPER_EPSILONS,
    units: Sequence[str] = ("sum", "percent"),
    group: str = "all",
) -> pl.DataFrame:
    """Share of the keys that are *not* sinks against epsilon, in each unit: unit, epsilon, sinks, keys, non_sinks.

    Every (step, layer, head, key) of a step in which the group has queries counts once.
    """
    rules = [[Threshold(float(epsilon), unit=unit, group=group) for epsilon in epsilons] for unit in units]
    if not rules or not rules[0]:
        raise RuleError("A sweep needs at least one epsilon and one unit, and got none: name some.")
    queries, alive = query_count(trace, group), missing_keys(trace)
    sinks = np.zeros((len(units), len(epsilons)), dtype=np.int64)
    heads = 0
    for _, (received,) in columns_by_layer(trace, [group]):
        columns = Columns.of(received, queries, alive)
        heads += received.shape[1] * received.shape[2]
        values = columns.received.numpy()
        for u, row in enumerate(rules):
            for e, rule in enumerate(row):
                # Missing keys and steps without queries are 0, which is never above a limit.
                sinks[u, e] += np.count_nonzero(values > rule.limit(columns).numpy())
    keys = int((alive_keys(trace) & (queries > 0)[:, None]).sum()) * heads
    rows = [
        {"unit": unit, "epsilon": float(epsilon), "sinks": int(sinks[u, e]), "keys": keys}
        for u, unit in enumerate(units)
        for e, epsilon in enumerate(epsilons)
    ]
    schema = {"unit": pl.String, "epsilon": pl.Float64, "sinks": pl.Int64, "keys": pl.Int64}
    return pl.DataFrame(rows, schema=schema).with_columns(
        non_sinks=1 - pl.col("sinks") / pl.col("keys"), group=pl.lit(group)
    )


@on_one_core
def histogram(trace: TraceLike, bins: int = 50, unit: str = "sum", group: str = "all") -> pl.DataFrame:
    """How many keys have which score: low, high (exclusive, but for the last bin), count, share, and the unit.

    The bins are equal and run from 0 to the largest score, rounded up to a whole number except in the unit `mean`.
    """
    if bins < 1:
        raise RuleError(f"A histogram needs at least one bin, not {bins}.")
    rule = Threshold(0.0, unit=unit, group=group)
    queries, alive = query_count(trace, group), missing_keys(trace)
    counted = (alive_keys(trace) & (queries > 0)[:, None])[:, None, None, :]
    top = 0.0
    for _, (received,) in columns_by_layer(trace, [group]):
        top = max(top, float(rule.scores(received, queries, alive).amax()))
    top = (top if unit == "mean" else math.ceil(top)) or 1.0
    count = np.zeros(bins, dtype=np.int64)
    for _, (received,) in columns_by_layer(trace, [group]):
        scores = rule.scores(received, queries, alive)
        values = scores if bool(counted.all()) else scores[counted.expand_as(scores)]
        place = (values.flatten() * (bins / top)).int().clamp_(max=bins - 1)
        count += torch.bincount(place, minlength=bins).numpy()
    edges = np.linspace(0.0, top, bins + 1)
    return pl.DataFrame({"low": edges[:-1], "high": edges[1:], "count": count}).with_columns(
        share=pl.col("count") / max(1, int(count.sum())), unit=pl.lit(unit), group=pl.lit(group)
    )
