"""Conditions in the words of a study file."""

from __future__ import annotations

from typing import Any

from sinkscope.conditions import Condition


def make_condition(
    name: str, k: int = 0, rank: str | None = None, rows: str | None = None, match: str | None = None, **more: Any
) -> Condition:
    words = {"k": k or None, "rank": rank, "rows": rows, "match": match, **more}
    words |= {rule: dict(words[rule]) for rule in ("above", "below") if rule in words}
    (made,) = Condition.read({"name": name, **{word: value for word, value in words.items() if value is not None}})
    return made
