"""Shares over traced generations with their intervals: whole generations are drawn with replacement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sinkscope.sinks.tokens import STRUCTURAL
from sinkscope.study.analysis.rows import Interval
from sinkscope.study.schema import Study

Counts = npt.NDArray[np.float64]  # one per generation


def ratio(study: Study, part: Counts, whole: Counts) -> Interval | None:
    """Sum of the parts over the sum of the wholes; None where there is nothing to divide by."""
    if whole.sum() <= 0:
        return None
    count = len(part)
    weight = np.random.default_rng(study.seed).multinomial(count, np.full(count, 1 / count), study.draws)
    below = weight @ whole
    drawn = np.divide(weight @ part, below, out=np.zeros_like(below), where=below > 0)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(part.sum() / whole.sum()), float(low), float(high))


def intervals(
    study: Study, made: Sequence[Mapping[str, Any]], vocabulary: Mapping[str, Sequence[str]]
) -> dict[str, Interval]:
    """What the paper's claims are judged by, by name.

    with_sink: heads that have a sink. static, moving, flash: of those, by their columns so far in an ARM. start: sinks among
    the first four positions. key_0: attention on key 0. structural, structural_base: share of the sinks, and of the
    canvas, that are structural tokens. deep_sinks, deep_strength: last third of the layers less first third.
    """
    heads = [one.get("columns") or one["heads"] for one in made]
    classes = [[head["class"] for head in one] for one in heads]
    ones = np.ones(len(made))
    having = _array(sum(name != "none" for name in one) for one in classes)
    found: dict[str, Interval | None] = {"with_sink": ratio(study, having, _array(len(one) for one in classes))}
    for name in ("static", "moving", "flash"):
        found[name] = ratio(study, _array(one.count(name) for one in classes), having)
    places = [one["places"] for one in made]
    found["start"] = ratio(study, _array(one["start"] for one in places), _array(one["sinks"] for one in places))
    found["key_0"] = ratio(study, _array(np.mean(one["first_key"]) for one in made), ones)
    for name, column in (("structural", 0), ("structural_base", 1)):
        part = _array(_counted(one["tokens"], vocabulary, column, STRUCTURAL) for one in made)
        found[name] = ratio(study, part, _array(_counted(one["tokens"], vocabulary, column) for one in made))
    for name in ("sinks", "strength"):
        found[f"deep_{name}"] = ratio(study, _array(_deeper(one["heads"], name) for one in made), ones)
    return {name: one for name, one in found.items() if one is not None}


def _array(values: Any) -> Counts:
    return np.array(list(values), dtype=np.float64)


def _counted(
    tokens: Mapping[str, Sequence[float]],
    vocabulary: Mapping[str, Sequence[str]],
    column: int,
    kinds: Sequence[str] | None = None,
) -> float:
    return sum(counts[column] for token, counts in tokens.items() if kinds is None or vocabulary[token][1] in kinds)


def _deeper(heads: Sequence[Mapping[str, Any]], name: str) -> float:
    """Mean of the last third of the layers less that of the first third; heads without a value count as 0."""
    layers = sorted({head["layer"] for head in heads})
    third = max(1, len(layers) // 3)
    first, last = (
        float(np.mean([head[name] or 0.0 for head in heads if head["layer"] in part]))
        for part in (layers[:third], layers[-third:])
    )
    return last - first
