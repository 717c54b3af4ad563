"""What a field may hold: a test, and the words that an error has for it; settings, interventions and studies share these."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from functools import cache
from numbers import Real
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from sinkscope.errors import SinkscopeError

LARGEST = 2**63 - 1  # whole number that a tensor holds
LARGEST_FLOAT = 3e38  # … and float


@dataclass(frozen=True)
class Allowed:
    """expected: what `fits` wants, as it follows "must be …"."""

    words: str | Callable[[], str]  # a function, where they may still change
    fits: Callable[[Any], bool]

    @property
    def expected(self) -> str:
        return self.words if isinstance(self.words, str) else self.words()

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
    """One of the choices; those that are added later count too."""

    def words() -> str:
        known = list(map(str, choices))
        return " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"

    return Allowed(words, lambda value: not isinstance(value, list | dict) and value in tuple(choices))


def maybe(inner: Allowed) -> Allowed:
    """The same, or nothing."""
    return Allowed(f"{inner.expected}, or null", lambda value: value is None or inner(value))


TRUTH = Allowed("true or false", lambda value: isinstance(value, bool))
NUMBERS = Allowed(
    "a list of whole numbers from 0 on, such as (0, 1), or left out for all of them",
    lambda value: isinstance(value, list | tuple) and bool(value) and all(map(whole(0), value)),
)
FromZero = Annotated[int, whole(0)]


def need(name: str, value: object, allowed: Allowed, error: type[SinkscopeError]) -> None:
    if not allowed(value):
        raise error(f"Expected {name} to be {allowed.expected}, got {shown(value, 60)}.")


def check_fields(made: Any, error: type[SinkscopeError], where: str = "") -> None:
    """Refuse a value that the type of its field does not allow: what may stand there is said by the annotation, once."""
    kind: type = type(made)
    for name, allowed in allowed_fields(kind).items():
        need(f"{name}{where}", getattr(made, name), allowed, error)


@cache
def allowed_fields(kind: type) -> dict[str, Allowed]:
    """What the fields of a dataclass may hold, where their types say it."""
    found: dict[str, Allowed] = {}
    for one in fields(kind):
        owner = next(owner for owner in kind.__mro__ if one.name in inspect.get_annotations(owner))
        alone = SimpleNamespace(__annotations__={one.name: one.type})
        try:
            hint = get_type_hints(alone, vars(sys.modules[owner.__module__]), include_extras=True)[one.name]
        except (NameError, TypeError):  # a type that only the type checker imports
            continue
        if allowed := _allowed(hint):
            found[one.name] = allowed
    return found


def _allowed(hint: Any) -> Allowed | None:
    """`Annotated` says it itself; choices, truths and numbers are what their types are; of all else nothing is said."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next((one for one in inside[1:] if isinstance(one, Allowed)), None)
    if origin is Literal:
        return among(inside)
    if origin in (Union, UnionType):
        kinds = [_allowed(one) for one in inside if one is not type(None)]
        known = [one for one in kinds if one is not None]
        if len(known) < len(kinds):
            return None
        expected = " or ".join(one.expected for one in known)
        return Allowed(
            expected, lambda value: (value is None and len(known) < len(inside)) or any(one(value) for one in known)
        )
    return {bool: TRUTH, int: Allowed("a whole number", _is_whole), float: Allowed("a number", _is_number)}.get(hint)


def frozen(value: Any) -> Any:
    """Several values as a tuple, all the way down: what can be compared and hashed."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple | set | frozenset | range) else value


def thawed(value: Any) -> Any:
    return list(map(thawed, value)) if isinstance(value, tuple) else value


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


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return _is_number(value) and math.isfinite(float(value))
    except OverflowError:  # a whole number that no float can hold
        return False
