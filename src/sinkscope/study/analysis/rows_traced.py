"""Rows of results.json that are made of traces and of the two halves of the positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.study.analysis.rows import Interval, Row


@dataclass(frozen=True)
class Heads(Row):
    """Shares of heads by what their sinks do, and means over heads and generations."""

    static: float
    moving: float
    flash: float
    split: float
    none: float
    left: float
    right: float
    wander: float
    presence: float | None
    sinks: float | None
    strength: float | None
    absorption: float | None
    entropy_relative: float | None
    lifetime: float | None
    jaccard: float | None
    one_step_share: float | None
    displacement: float | None
    moves: float | None
    trend: float | None
    home_share: float | None
    value_ratio: float | None
    split_share: float | None
    agreement: float | None


@dataclass(frozen=True)
class _Layer(Row):
    layer: int
    first_key: float


@dataclass(frozen=True)
class Layer(Heads, _Layer):
    """One layer's heads, with the share of attention on key 0."""


@dataclass(frozen=True)
class _Traced(Row):
    model: str
    setting: str
    condition: str
    generations: int


@dataclass(frozen=True)
class _Where(Row):
    """After the heads: what was found, where it stands, and layer by layer."""

    sinks_found: int
    non_sinks: float
    places: Mapping[str, float | None]
    rules: list[Mapping[str, Any]]
    layers: list[Layer]
    rule: str
    unit: str | None
    epsilon: float | None
    intervals: Mapping[str, Interval] | None = None  # over generations
    columns: Heads | None = None  # of an ARM: the same heads by their columns so far, per row that sees the key


@dataclass(frozen=True)
class Dynamics(_Where, Heads, _Traced):
    """What the sinks of a model do under one condition."""


@dataclass(frozen=True)
class Mechanism(Row):
    """Change of confidence and of the commit step in the half that depended more on the masked keys, and in the other."""

    model: str
    k: int
    problems: int
    unit: str
    dependence_high: float | None = None
    confidence_sinks_high: float | None = None
    delay_sinks_high: float | None = None
    confidence_random_high: float | None = None
    delay_random_high: float | None = None
    dependence_low: float | None = None
    confidence_sinks_low: float | None = None
    delay_sinks_low: float | None = None
    confidence_random_low: float | None = None
    delay_random_low: float | None = None
    confidence_sinks_gap: Interval | None = None
    confidence_random_gap: Interval | None = None
    confidence_gap_beyond_random: Interval | None = None
    delay_sinks_gap: Interval | None = None
    delay_random_gap: Interval | None = None
    delay_gap_beyond_random: Interval | None = None
    # The same with commits by a threshold, so that their number per step is free, of problems that took more than one.
    free_problems: int | None = None
    free_delay_sinks: Interval | None = None
    free_delay_random: Interval | None = None
    free_delay_beyond_random: Interval | None = None
    free_delay_sinks_gap: Interval | None = None
    free_delay_gap_beyond_random: Interval | None = None
    free_steps_sinks: Interval | None = None
    free_steps_beyond_random: Interval | None = None
