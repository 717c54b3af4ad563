"""Decode settings of a study file: one value, or a list of values to sweep, each checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

from pydantic import ValidationInfo

from sinkscope.study.mistakes import refuse, shown
from sinkscope.study.reader import among, number, optional, whole

# Settings that a study does not choose, and what does.
DECIDED = {
    "family": "the model's family decides how it decodes",
    "noise": "a study always draws noise per_row, so that an answer does not depend on its chunk",
}


def read_decode(words: Any, info: ValidationInfo, most: int) -> dict[str, Any]:
    """The words as they stand, once every one of them is known and fits."""
    if not isinstance(words, dict):
        raise refuse(info, ("decode",), f"must be a mapping of decode settings, not {shown(words)}")
    checks = _checks()
    for name, value in words.items():
        path = ("decode", name)
        if name in DECIDED:
            raise refuse(info, path, f"must not be given: {DECIDED[name]}")
        if name not in checks:
            raise refuse(info, path, f"is no decode setting; known are {', '.join(sorted(checks))}")
        if isinstance(value, dict) or value == []:
            raise refuse(info, path, f"must be one value, or a list of values to sweep, not {shown(value)}")
        check, expected = checks[name]
        for one in value if isinstance(value, list) else [value]:
            if not check(one):
                raise refuse(info, path, f"must be {expected}, not {shown(one)}")
    points = math.prod(len(value) for value in words.values() if isinstance(value, list))
    if points > most:
        raise refuse(info, ("decode",), f"makes {points:,} points, and at most {most:,} can be swept; leave some out")
    return dict(words)


def _checks() -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Setting → check, and what is expected; null only where a setting may be left open."""
    from sinkscope.settings.decode import Decode
    from sinkscope.settings.words import CHOICES, DREAM_ALGORITHMS, FLAGS, ID_LISTS, IDS, RANGES, WHOLE

    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        **{name: (whole(least), f"a whole number of at least {least}") for name, least in WHOLE.items()},
        **{name: (whole(0), "a whole number of at least 0") for name in (*IDS, "seed")},
        **{name: (lambda value: isinstance(value, bool), "true or false") for name in FLAGS},
        "algorithm": (among(DREAM_ALGORITHMS), f"one of {', '.join(DREAM_ALGORITHMS)}"),
    }
    for name, low, high in RANGES:
        words = f"a number of at least {low}" if high is None else f"a number from {low} to {high}"
        checks[name] = number(low, sys.float_info.max if high is None else high), words
    for item in dataclasses.fields(Decode):
        if item.name in CHOICES:
            choices = [choice for choice in CHOICES[item.name] if choice is not None]
            checks[item.name] = among(choices), f"one of {', '.join(choices)}"
        if item.default is None:
            check, words = checks[item.name]
            checks[item.name] = optional(check), f"{words}, or null"
    return {name: check for name, check in checks.items() if name not in (*DECIDED, *ID_LISTS)}
