"""The paper's claims beside what a run says of them, each by a stated rule and from the run's own rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sinkscope.study.analysis import claims_masking, claims_traced
from sinkscope.study.analysis.rows import Claim


def claims(tables: Mapping[str, Sequence[Any]], margin: float) -> list[Claim]:
    """Every claim that the run can speak to; margin: in shares. Of a sweep the first point is judged."""
    here = {name: _first_point(rows) for name, rows in tables.items()}
    return list(_claims(here, margin))


def _claims(tables: Mapping[str, Sequence[Any]], margin: float) -> Iterator[Claim]:
    yield from claims_traced.exist(tables)
    yield from claims_traced.move(tables)
    yield from claims_masking.one_sink_of_a_dlm(tables, margin)
    yield from claims_masking.the_sink_of_an_arm(tables)
    yield from claims_traced.structural(tables)
    yield from claims_traced.threshold(tables)
    yield from claims_traced.deeper(tables)
    yield from claims_traced.confidence(tables)


def _first_point(rows: Sequence[Any]) -> list[Any]:
    """Of every model, the rows at the first point of a sweep."""
    first: dict[str, str] = {}
    for row in rows:
        if getattr(row, "setting", None) is not None:
            first.setdefault(row.model, row.setting)
    return [row for row in rows if getattr(row, "setting", None) in (None, first.get(row.model))]
