"""Rows of results.json as frozen dataclasses, in the order of their fields; `Results` is the whole file.

`to_dict` gives plain JSON values. The JSON schema in docs/reference is made from these classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Row:
    """Anything that stands in results.json."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a field whose default is None is left out where it is None."""
        return {
            item.name: _plain(value)
            for item in dataclasses.fields(self)
            if (value := getattr(self, item.name)) is not None or item.default is not None
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Control(Row):
    """A cell against random keys: paired, problem by problem; and what the random keys took."""

    accuracy: float
    difference: float
    difference_low: float
    difference_high: float
    p: float
    lost: int
    won: int
    key_share: float | None
    mass_share: float | None
    leak: float
    p_holm: float = 1.0


@dataclass(frozen=True)
class SolvableTasks(Row):
    """The numbers of a pooled cell over those tasks that the model can do."""

    n: int
    correct: int
    accuracy: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float
    p: float
    p_holm: float
    lost: int
    won: int
    key_share: float | None
    mass_share: float | None
    controls: Mapping[str, Control]


@dataclass(frozen=True)
class Cell(Row):
    """Answers of one model to one task under one condition, compared with nothing masked and with random keys."""

    model: str
    family: str
    causal: bool
    task: str
    setting: str
    condition: Mapping[str, Any]
    label: str
    n: int
    correct: int
    accuracy: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float
    p: float
    lost: int
    won: int
    p_holm: float
    key_share: float | None
    mass_share: float | None
    leak: float
    confidence: float
    controls: Mapping[Literal["count", "mass"], Control]
    paper: float | None
    per_percent: float | None = None  # points of accuracy per percent of the attention taken
    p_primary: float | None = None  # of a primary comparison: corrected over all primary ones of the study


@dataclass(frozen=True, kw_only=True)
class PooledCell(Cell):
    """A cell with all tasks together, and once more without those that the model can hardly do."""

    weak: Mapping[str, float]
    able: SolvableTasks | None


@dataclass(frozen=True)
class Compared(Row):
    """A point of a sweep against the first one, over the tasks that the model can do at one of them."""

    n: int
    difference: float
    difference_low: float
    difference_high: float
    p: float
    lost: int
    won: int
    p_holm: float = 1.0


@dataclass(frozen=True)
class Setting(Row):
    """A point of a decode sweep without intervention, against the first one."""

    model: str
    task: str
    setting: str
    against: str
    difference: float
    difference_low: float
    difference_high: float
    p: float
    lost: int
    won: int
    weak: Mapping[str, float]
    able: Compared | None
    p_holm: float = 1.0


@dataclass(frozen=True)
class _Traced(Row):
    """What was traced; the label of the condition, not its settings."""

    model: str
    setting: str
    condition: str


@dataclass(frozen=True)
class _Named(Row):
    token: str


@dataclass(frozen=True)
class _Share(Row):
    """A share of the sinks with its interval, beside the share of the canvas."""

    kind: str
    share: float
    low: float
    high: float
    base: float
    enrichment: float | None
    sinks: int
    generations: int
    rule: str
    unit: str | None


@dataclass(frozen=True)
class Kind(_Share, _Traced):
    """The share of the sinks that a kind of token is, beside its share of the canvas."""


@dataclass(frozen=True)
class Token(_Share, _Named, _Traced):
    """The share of the sinks that a token is, beside its share of the canvas."""


@dataclass(frozen=True)
class Curve(_Traced):
    """The share of the keys that are no sinks at one epsilon."""

    unit: str
    epsilon: float
    non_sinks: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Interval(Row):
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Likelihood(Row):
    """Mean log-likelihood per token under a condition, paired text by text with nothing masked."""

    model: str
    condition: Mapping[str, Any]
    label: str
    n: int
    tokens: int
    unit: str
    value: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float
    p: float
    key_share: float | None
    mass_share: float | None
    leak: float
    of: Literal["texts", "answers"] = "texts"  # held-out text, or the true answers to problems
    causal: bool = True  # only autoregressive models are measured by the likelihood of text


@dataclass(frozen=True)
class FirstKey(Row):
    """Share of the attention on key 0, layer by layer."""

    model: str
    layers: list[float]


@dataclass(frozen=True)
class Verdict(Row):
    """What a stated rule says of a model, and the numbers it says it from."""

    model: str
    name: str
    value: str
    because: str
    line: str | None = None  # the value and one clause


@dataclass(frozen=True)
class Value(Row):
    """One figure that a claim is judged by."""

    label: str
    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Claim(Row):
    """A claim of the paper beside what this run says of it."""

    name: str
    claim: str
    verdict: Literal["agrees", "agrees in part", "disagrees", "undecided"]
    figure: str
    because: str
    condition: str
    values: list[Value]
