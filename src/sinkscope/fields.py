"""What a field may hold: a test, and the words that an error has for it; settings, interventions and studies share these."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from sinkscope.errors import SinkscopeError

LARGEST = 2**63 - 1  # whole number that a tensor holds
LARGEST_FLOAT = 3e38  # … and float


@dataclass(frozen=True)
class Allowed:
    """expected: what `fits` wants, as it follows "must be …"."""

    expected: str
    fits: Callable[[Any], bool]

    def __call__(self, value: Any) -> bool:
        return self.fits(value)


def whole(least: int, most: int | None = None) -> Allowed:
    words = f"a whole number of at least {least}" + ("" if most is None else f" and at most {most}")
    return Allowed(words, lambda value: _is_whole(value) and least <= value <= (LARGEST if most is None else most))


def number(low: float, high: float | None = None) -> Allowed:
    """A finite one, of Python or numpy."""
    words = f"a number of at least {low:g}" if high is None else f"a number from {low:g} to {high:g}"
    return Allowed(words, lambda value: _is_finite(value) and low <= value <= (LARGEST_FLOAT if high is None else high))


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


def refuse_huge(what: str, values: Iterable[Any], error: type[SinkscopeError]) -> None:
    """Refuse numbers that no tensor can hold, in tuples and lists too; NaN and infinity are left to what reads them."""
    for value in values:
        if isinstance(value, list | tuple):
            refuse_huge(what, value, error)
        elif isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise error(f"Expected whole numbers of at most 63 bits in {what}, got {shown(value)}.")
        elif isinstance(value, float) and LARGEST_FLOAT < abs(value) < math.inf:
            raise error(f"Expected numbers of at most {LARGEST_FLOAT:g} in {what}, got {shown(value)}.")


def shown(value: object, most: int = 120) -> str:
    """A wrong value as it is repeated: text in quotes, a number as it is; neither longer than is worth reading."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # it holds a number with more digits than Python writes
        return f"a {type(value).__name__} with a number that is too long to write"
    return text if len(text) <= most else f"{text[: most - 3]}…"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(float(value))
    except OverflowError:  # a whole number that no float can hold
        return False
