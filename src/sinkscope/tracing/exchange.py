"""A trace's attention maps in the form that other packages draw: the arguments of CircuitsVis's and BertViz's functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import TraceError
from sinkscope.tracing.record import Trace


def attention(trace: Trace, step: int, layer: int | None = None) -> tuple[Tensor, list[tuple[int, int]]]:
    """Maps of a step, [map, query, key] fp32, and the (layer, head) of each; rows that the step did not compute are 0."""
    if trace.maps is None:
        raise TraceError(
            "Expected a trace with attention maps, and this one kept none; record it with keep=sk.Keep(maps=((0, 0), …))."
        )
    if type(step) is not int or not 0 <= step < trace.steps:
        raise TraceError(f"Expected a step from 0 to {trace.steps - 1}, got {step!r}.")
    chosen = [place for place, head in enumerate(trace.map_heads) if layer is None or head[0] == layer]
    if not chosen:
        kept = sorted({head[0] for head in trace.map_heads})
        raise TraceError(f"Expected a layer of which maps were kept ({', '.join(map(str, kept))}), got {layer!r}.")
    return trace.maps[chosen, step].float(), [trace.map_heads[place] for place in chosen]


def tokens(trace: Trace, step: int) -> list[str]:
    """What stands on the canvas before the forward of a step, as text."""
    return [trace.vocabulary[token][0] for token in trace.canvas[step].tolist()]


def circuitsvis(trace: Trace, step: int, layer: int | None = None) -> dict[str, Any]:
    """Arguments of `circuitsvis.attention.attention_heads`."""
    maps, heads = attention(trace, step, layer)
    names = [f"L{one}H{head}" for one, head in heads]  # as TransformerLens writes them
    return {
        "attention": maps,
        "tokens": tokens(trace, step),
        "attention_head_names": names,
        "mask_upper_tri": trace.causal,
    }


def bertviz(trace: Trace, step: int) -> dict[str, Any]:
    """Arguments of `bertviz.head_view` and `model_view`: of each layer whose maps were kept, [1, head, query, key]."""
    maps, heads = attention(trace, step)
    by_layer: dict[int, dict[int, Tensor]] = {}
    for (layer, head), one in zip(heads, maps, strict=True):
        by_layer.setdefault(layer, {})[head] = one
    if len({tuple(sorted(kept)) for kept in by_layer.values()}) > 1:
        raise TraceError("Expected maps of the same heads in every layer, which is all that BertViz draws; keep those.")
    layers = [torch.stack([kept[head] for head in sorted(kept)])[None] for _, kept in sorted(by_layer.items())]
    return {"attention": layers, "tokens": tokens(trace, step)}
