"""Outlier channels: the largest channels of the residual stream behind each layer, step by step, at sinks and elsewhere."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.errors import TraceError
from sinkscope.interventions.ablate import largest
from sinkscope.interventions.hooks import HookContext, hook
from sinkscope.models.base import Model

if TYPE_CHECKING:
    import polars as pl

    from sinkscope.sinks.rules import Rule
    from sinkscope.tracing.record import Trace


class ChannelBuffer:
    """The channels of a batch, and their values at every position that a step computed; 0 elsewhere."""

    def __init__(self, model: Model, batch: int, steps: int, layers: int, width: int, count: int) -> None:
        if count > int(model.config.hidden_size):
            raise TraceError(
                f"Expected channels of at most {model.config.hidden_size}, the width of {model.name}, got {count}."
            )
        self.model = model
        self.channels = torch.zeros(batch, steps, layers, count, dtype=torch.int32)
        self.values = torch.zeros(batch, steps, layers, count, width)

    def hooks(self, stack: ExitStack) -> None:
        stack.enter_context(hook(self.model, "resid_post", self._take))

    def _take(self, activation: Tensor, context: HookContext) -> None:
        if context.kind != "denoise" or context.groups is None:
            return
        state = activation[: context.rows]
        best = largest(state, context.groups[: context.rows] >= 0, self.channels.shape[-1])  # [batch, n]
        values = state.gather(-1, best[:, None].expand(-1, state.shape[1], -1)).mT
        self.channels[:, context.step, context.layer] = best.to("cpu", torch.int32)
        self.values[:, context.step, context.layer, :, context.columns] = values.float().cpu()


def outliers(trace: Trace, rule: Rule | None = None) -> pl.DataFrame:
    """A row per layer and channel: in which share of steps it is among the largest, and its size at sinks and elsewhere.

    Sizes are root mean squares over the steps in which it is kept. A position counts as a sink of a layer's output where it
    is one in any head of the next layer, whose keys are made of it (of the last layer: in its own heads). Of a causal trace
    the prompt is looked at, and a position that is a sink at any step.
    """
    import polars as pl

    from sinkscope.sinks.columns import CumulativeColumns, default_rule, marks_by_layer

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
    names = ("layer", "channel", "steps", "at_sinks", "elsewhere")
    made = pl.DataFrame(
        rows,
        schema=dict(zip(names, (pl.Int64, pl.Int64, pl.Float64, pl.Float64, pl.Float64), strict=True)),
        orient="row",
    )
    return made.sort("layer", pl.max_horizontal("at_sinks", "elsewhere"), descending=[False, True])


def _size(values: Tensor) -> float | None:
    return float(values.double().square().mean().sqrt()) if values.numel() else None
