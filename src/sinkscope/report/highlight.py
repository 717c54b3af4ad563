"""The head that a page opens on: the liveliest moving sink of a diffusion model, as the model is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from sinkscope.report.sample import head_table
from sinkscope.sinks.notable import motion
from sinkscope.tracing import Trace

LONG = 10  # steps from which a way can be followed by the eye; shorter generations only where there is no longer one


def liveliest(traces: Sequence[Trace]) -> dict[str, Any] | None:
    """{"sample", "layer", "head", "way"} of the head whose sink goes furthest one way; None if none moves."""
    best, found = (False, False, 0.0), None
    for place, trace in enumerate(traces):
        if trace.causal or trace.interventions or trace.steps < 2:
            continue
        moving = head_table(trace).filter(pl.col("class") == "moving").with_columns(motion().alias("score"))
        for row in moving.iter_rows(named=True):
            # A sink that only spreads to one side without its largest key ever changing does not look as if it moved.
            rank = (trace.steps >= LONG, row["moves"] > 0, row["score"])
            if row["score"] and rank > best:
                best = rank
                found = {"sample": place, "layer": row["layer"], "head": row["head"], "way": row["direction"]}
    return found
