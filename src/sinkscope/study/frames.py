"""Rows of results as polars frames: every value in a column of its own, so that a frame is also a CSV file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from sinkscope.study.results import ResultRow


def to_frame(rows: Sequence[ResultRow], kind: type[ResultRow]) -> pl.DataFrame:
    """A row each; `condition_k` is the field k of the field condition, a list is JSON. Without rows, the plain columns."""
    if not rows:
        return pl.DataFrame(schema=[field.name for field in dataclasses.fields(kind)])
    flat = [dict(_flat(row.to_dict())) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    made = pl.DataFrame([pl.Series(name, _alike([row.get(name) for row in flat]), strict=False) for name in names])
    # Where some rows have nothing in place of nested fields, that is a column of nothing.
    return made.drop(name for name in names if made[name].null_count() == made.height and f"{name}_" in _starts(names))


def _starts(names: Iterable[str]) -> set[str]:
    return {name[: place + 1] for name in names for place, sign in enumerate(name) if sign == "_"}


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, list) else value


def _alike(values: list[Any]) -> list[Any]:
    """A setting may be a word in one condition and a number in another: then all are text."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float} or len(kinds) == 1:
        return values
    return [None if value is None else str(value) for value in values]
