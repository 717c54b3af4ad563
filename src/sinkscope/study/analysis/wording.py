"""Numbers in the words of a verdict: shares in %, differences in points, intervals in brackets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sinkscope.study.analysis.rows import Interval


class Changed(Protocol):
    """A difference of accuracies with its interval."""

    @property
    def difference(self) -> float: ...
    @property
    def difference_low(self) -> float: ...
    @property
    def difference_high(self) -> float: ...


class Ruled(Protocol):
    """A row that was made with a sink rule."""

    @property
    def rule(self) -> str: ...
    @property
    def unit(self) -> str | None: ...
    @property
    def epsilon(self) -> float | None: ...


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def span(row: Changed) -> str:
    return f"[{100 * row.difference_low:+.1f}, {100 * row.difference_high:+.1f}]"


def changed(row: Changed) -> str:
    """A difference with its interval."""
    return f"{points(row.difference)} {span(row)}"


def gap(found: Interval, scale: float = 1.0) -> str:
    return f"{scale * found.value:+.2f} [{scale * found.low:+.2f}, {scale * found.high:+.2f}]"


def chance(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def left_out(weak: Mapping[str, float]) -> str:
    """A sentence about the tasks that were too weak to count; empty if all count."""
    told = ", ".join(f"{task} ({100 * share:.1f} % right)" for task, share in weak.items())
    return f" Left out as too weak: {told}." if told else ""


def rule(row: Ruled) -> str:
    """The sink rule that a row was made with."""
    return f"{row.rule} {row.epsilon:g} in {row.unit}" if row.epsilon is not None else row.rule
