"""The head that a page opens on: the liveliest moving sink of a diffusion model, as the model is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from sinkscope.report.sample import head_table
from sinkscope.tracing import Trace


def liveliest(traces: Sequence[Trace]) -> dict[str, Any] | None:
    """{"sample", "layer", "head", "name", "way"} of the head whose sink goes furthest one way; None if none moves.

    A head counts by presence × trend² × |drift|: its sink is there at most steps, keeps to one way, and goes far.
    """
    best, found = 0.0, None
    for place, trace in enumerate(traces):
        if trace.causal or trace.interventions or trace.steps < 2:
            continue
        moving = head_table(trace).filter(pl.col("class") == "moving")
        for row in moving.iter_rows(named=True):
            score = row["presence"] * (row["trend"] or 0) ** 2 * abs(row["drift"] or 0)
            if score > best:
                best = score
                found = {"sample": place, "layer": row["layer"], "head": row["head"], "way": row["direction"]}
    return found
