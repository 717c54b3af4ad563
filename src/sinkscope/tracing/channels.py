"""Outlier channels: the largest channels of the residual stream behind each layer, step by step, at sinks and elsewhere."""

from __future__ import annotations

from typing import Any

import polars as pl
import torch
from torch import Tensor

from sinkscope.errors import TraceError
from sinkscope.sinks import Rule, default_rule
from sinkscope.sinks.columns import CumulativeColumns, marks_by_layer
from sinkscope.tracing.record import Trace


def outliers(trace: Trace, rule: Rule | None = None) -> pl.DataFrame:
    """A row per layer and channel: in which share of steps it is among the largest, and its size at sinks and elsewhere.

    Sizes are root mean squares over the steps in which it is kept. A position counts as a sink of a layer's output where it
    is one in any head of the next layer, whose keys are made of it (of the last layer: in its own heads). Of a causal trace
    the prompt is looked at, and a position that is a sink at any step.
    """
    if trace.channels is None or trace.channel_values is None:
        raise TraceError(
            "Expected a trace with channels, and this one kept none; record it with keep=sk.Keep(channels=8)."
        )
    seen: Any = CumulativeColumns(trace) if trace.causal else trace
    marks = torch.cat([marks for _, _, _, marks in marks_by_layer(seen, rule or default_rule(trace))], 1).any(2)
    channels, all_values = trace.channels, trace.channel_values
    if trace.causal:  # later steps compute one position each, and leave the prompt's states as they are
        channels, all_values, marks = channels[:1], all_values[:1], marks.any(0, keepdim=True)
    rows = []
    for layer in range(trace.layers):
        at = marks[:, min(layer + 1, trace.layers - 1)]  # [step, position]
        there = all_values[:, layer].abs().sum(1) > 0  # what the step computed
        for channel in channels[:, layer].unique().tolist():
            kept = channels[:, layer] == channel  # [step, n]
            values = all_values[:, layer][kept]  # [kept step, position]
            steps = kept.any(1)
            sizes = [_size(values[where[steps]]) for where in (at & there, ~at & there)]
            rows.append((layer, channel, float(steps.float().mean()), *sizes))
    schema = {"layer": pl.Int64, "channel": pl.Int64, **dict.fromkeys(("steps", "at_sinks", "elsewhere"), pl.Float64)}
    made = pl.DataFrame(rows, schema=schema, orient="row")
    return made.sort("layer", pl.max_horizontal("at_sinks", "elsewhere"), descending=[False, True])


def _size(values: Tensor) -> float | None:
    return float(values.double().square().mean().sqrt()) if values.numel() else None
