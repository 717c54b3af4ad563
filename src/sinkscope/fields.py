"""What a field may hold: a test, and the words that an error has for it. Settings, interventions and studies share these."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from numbers import Real
from typing import Any

from sinkscope.errors import SinkscopeError


@dataclass(frozen=True)
class Allowed:
    """expected: what `fits` wants, as it follows "must be …"."""

    expected: str
    fits: Callable[[Any], bool]

    def __call__(self, value: Any) -> bool:
        return self.fits(value)


def whole(least: int, most: int | None = None) -> Allowed:
    words = f"a whole number of at least {least}" + ("" if most is None else f" and at most {most}")
    return Allowed(words, lambda value: _is_whole(value) and least <= value and (most is None or value <= most))


def number(low: float, high: float | None = None) -> Allowed:
    """A finite one, of Python or numpy."""
    words = f"a number of at least {low:g}" if high is None else f"a number from {low:g} to {high:g}"
    return Allowed(words, lambda value: _is_finite(value) and low <= value and (high is None or value <= high))


def among(choices: Collection[Any]) -> Allowed:
    known = tuple(choices)
    words = " or ".join(map(str, known)) if len(known) == 2 else f"one of {', '.join(map(str, known))}"
    return Allowed(words, lambda value: not isinstance(value, list | dict) and value in known)


def maybe(inner: Allowed) -> Allowed:
    """The same, or nothing."""
    return Allowed(f"{inner.expected}, or null", lambda value: value is None or inner(value))


TRUTH = Allowed("true or false", lambda value: isinstance(value, bool))


def need(name: str, value: object, allowed: Allowed, error: type[SinkscopeError]) -> None:
    if not allowed(value):
        raise error(f"Expected {name} to be {allowed.expected}, got {shown(value, 60)}.")


def shown(value: object, most: int = 120) -> str:
    """A wrong value as it is repeated: text in quotes, a number as it is; neither longer than is worth reading."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}…"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(float(value))
    except OverflowError:  # a whole number that no float can hold
        return False
