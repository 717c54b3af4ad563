"""What the fields of a recipe may be: checked when it is made, whether from a file or in code."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.errors import TrainingError
from sinkscope.io import bounded_yaml
from sinkscope.io.reading import read_text, short

MOST_WEIGHTS = 1 << 31  # numbers of a model that a recipe describes


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a field must be, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]


def whole(least: int, most: int) -> Kind:
    return Kind(f"a whole number of at least {least} and at most {most}", lambda value: _whole(value, least, most))


def number(low: float, high: float, above: bool = False) -> Kind:
    """above: low itself is too small."""
    words = f"a number above {low:g} and at most {high:g}" if above else f"a number from {low:g} to {high:g}"
    return Kind(words, lambda value: _number(value) and (low < value if above else low <= value) and value <= high)


def several(inner: Kind, least: int = 0, most: int = 10_000) -> Kind:
    return Kind(
        f"a list of {least} to {most} values, each {inner.words}",
        lambda value: isinstance(value, tuple) and least <= len(value) <= most and all(map(inner.fits, value)),
    )


def named(inner: Kind, least: int = 0) -> Kind:
    return Kind(
        f"a mapping of names to values, each {inner.words}",
        lambda value: isinstance(value, dict) and len(value) >= least
        and all(isinstance(name, str) and inner.fits(one) for name, one in value.items()),
    )  # fmt: skip


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable() and len(value) <= 1000


TRUTH = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a plain word", _text)
MAYBE_TEXT = Kind("a plain word, or nothing", lambda value: value is None or _text(value))
NAME = Kind(
    "a plain file name without slashes and '..'",
    lambda value: _text(value) and len(value.encode()) <= 150 and not any(part in value for part in ("/", "\\", "..")),
)
MAPPING = Kind(
    "a mapping of fields",
    lambda value: isinstance(value, dict) and all(isinstance(name, str) for name in value),
)
SEED = whole(0, 2**32 - 1)


def check(part: Any, kinds: dict[str, Kind]) -> None:
    """Every field of a dataclass that has a kind; the first that does not fit is told."""
    for name, kind in kinds.items():
        value = getattr(part, name)
        if not kind.fits(value):
            raise TrainingError(f"{name} must be {kind.words}, not {short(repr(value), 80)}; fix the recipe.")


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def read_yaml(path: Path) -> Any:
    """The plain values of a recipe file, bounded as study files are."""
    text = read_text(path, bounded_yaml.LARGEST, TrainingError)
    return bounded_yaml.parse(text, short(str(path)), TrainingError)[0]
