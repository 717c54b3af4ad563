"""The tables of sinks: each one, and how scores are spread (Fig. 3, 10)."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from sinkscope.errors import RuleError
from sinkscope.sinks.columns import (
    TraceLike,
    alive_keys,
    columns_by_layer,
    default_rule,
    marks_by_layer,
    missing_keys,
    on_one_core,
    query_count,
)
from sinkscope.sinks.rules import Columns, Rule, Threshold
from sinkscope.sinks.tokens import ROLE_KIND, role_names

Array = npt.NDArray[np.int64]


@on_one_core
def find(trace: TraceLike, rule: Rule | None = None) -> pl.DataFrame:
    """Every sink of a trace: step, layer, head, position, id, token, kind, score, and the unit that the score is in."""
    rule = rule or default_rule(trace)
    places, values = [], []
    for layers, _, scores, marks in marks_by_layer(trace, rule):
        place = marks.nonzero()
        values.append(scores[marks])
        place[:, 1] += layers.start
        places.append(place)
    place, value = torch.cat(places), torch.cat(values)
    if trace.layers > 1:  # chunks came layer by layer; readers expect the steps in order
        order = torch.from_numpy(np.lexsort([column.numpy() for column in place.unbind(-1)[::-1]]))
        place, value = place[order], value[order]
    return _named(_keys(trace, *place.unbind(-1)).with_columns(score=pl.Series(value.numpy())), rule)


def received(trace: TraceLike, group: str, unit: str) -> pl.DataFrame:
    """What each key that exists received, as rows."""
    scores = trace.scores(group, unit)  # [step, layer, head, key]
    there = alive_keys(trace)[:, None, None].expand(scores.shape)
    frame = _keys(trace, *there.nonzero().unbind(-1)).with_columns(received=pl.Series(scores[there].numpy()))
    return frame.with_columns(unit=pl.lit(unit), group=pl.lit(group))


def _keys(trace: TraceLike, step: Tensor, layer: Tensor, head: Tensor, position: Tensor) -> pl.DataFrame:
    """A row per key of a head at a step, with the token that stood there."""
    places = {"step": step, "layer": layer, "head": head, "position": position}
    frame = pl.DataFrame({name: column.numpy() for name, column in places.items()})
    return frame.with_columns(*token_columns(trace, step.numpy(), position.numpy()))


def _named(frame: pl.DataFrame, rule: Rule) -> pl.DataFrame:
    """The unit, the group and the rule stand in every table: a score without them says nothing."""
    return frame.with_columns(unit=pl.lit(rule.unit), group=pl.lit(rule.group), rule=pl.lit(rule.name))


def token_columns(trace: TraceLike, step: Array, position: Array) -> list[pl.Series]:
    """What stood on the canvas before the forward of a step: id, text shown and kind."""
    known, places = np.unique(trace.canvas.numpy(), return_inverse=True)
    code = places.reshape(trace.canvas.shape)[step, position]
    described = [trace.vocabulary.get(i, (f"#{i}", "unknown")) for i in known.tolist()]
    texts = pl.Series([text for text, _ in described])
    kinds = pl.Series([*(kind for _, kind in described), ROLE_KIND])
    role = role_names(trace.canvas.numpy(), trace.vocabulary)[step, position]
    return [
        pl.Series("id", known[code]),
        texts.gather(code).alias("token"),
        kinds.gather(np.where(role, len(known), code)).alias("kind"),
    ]


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
    rules = [Threshold(float(epsilon), unit=unit, group=group) for unit in units for epsilon in epsilons]
    if not rules:
        raise RuleError("A sweep needs at least one epsilon and one unit, and got none: name some.")
    queries, alive = query_count(trace, group), missing_keys(trace)
    sinks = np.zeros(len(rules), dtype=np.int64)
    for _, (received,) in columns_by_layer(trace, [group]):
        columns = Columns.of(received, queries, alive)
        values = columns.received.numpy()
        # Missing keys and steps without queries are 0, which is never above a limit.
        sinks += [np.count_nonzero(values > rule.limit(columns).numpy()) for rule in rules]
    keys = int((alive_keys(trace) & (queries > 0)[:, None]).sum()) * trace.layers * trace.heads_count
    frame = pl.DataFrame({"unit": [rule.unit for rule in rules], "epsilon": [rule.epsilon for rule in rules]})
    return frame.with_columns(sinks=pl.Series(sinks), keys=pl.lit(keys, pl.Int64)).with_columns(
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
