"""From figures to a word: agrees, agrees in part, disagrees, undecided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sinkscope.study.analysis.rows import Interval, Value

Word = Literal["agrees", "agrees in part", "disagrees", "undecided"]
LONGEST = 60  # characters of a figure


def agreement(holds: Sequence[bool | None]) -> Word:
    """Of tests that hold (True), fail (False) or say nothing (None); where none holds, half must fail to disagree."""
    told = [one for one in holds if one is not None]
    if not told:
        return "undecided"
    if all(told):
        return "agrees" if len(told) == len(holds) else "agrees in part"
    if any(told):
        return "agrees in part"
    return "disagrees" if 2 * len(told) >= len(holds) else "undecided"


def above(found: Interval | Value, limit: float) -> bool | None:
    """Is the whole interval above the limit (True), below it (False), or on both sides (None)?"""
    return True if found.low > limit else False if found.high < limit else None


def value(label: str, found: Interval, n: int) -> Value:
    return Value(label, found.value, found.low, found.high, n)


def share(found: Value | Interval) -> str:
    """57 % [51, 63]"""
    return f"{100 * found.value:.0f} % [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def loss(found: Value) -> str:
    """−58 [−65, −50]"""
    return f"{100 * found.value:+.0f} [{100 * found.low:+.0f}, {100 * found.high:+.0f}]"


def least(found: Sequence[Value]) -> Value:
    return min(found, key=lambda one: one.value)


def figure(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"
