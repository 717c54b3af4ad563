"""Averages of the maps that a trace kept: over its steps, and by the distance of a key from its query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import polars as pl
import torch
from torch import Tensor

from sinkscope.errors import TraceError
from sinkscope.tracing.trace import Trace

MapOf = Literal["pattern", "scores"]


def mean_map(trace: Trace, layer: int | None = None, head: int | None = None, of: MapOf = "pattern") -> Tensor:
    """The mean over steps, [layer, head, query, key] fp32; without the axes of the layer and head that are named.

    A step counts for the queries that it computed. of: "pattern" after the softmax, "scores" before it, where NaN stands
    at keys that a query never saw.
    """
    if of not in get_args(MapOf):
        raise TraceError(f'Expected of="pattern" or of="scores", got {of!r}.')
    slots = find_slots(trace, layer, head)
    means = torch.stack(
        [_mean_pattern(trace, slot) if of == "pattern" else _mean_scores(trace, slot) for slot in slots]
    )
    if layer is not None and head is not None:
        return means[0]
    if layer is not None or head is not None:
        return means
    layers = {one for one, _ in trace.map_heads}
    heads = {one for _, one in trace.map_heads}
    if len(slots) != len(layers) * len(heads):
        raise TraceError(
            "Expected the maps of the same heads in each layer, and this trace kept others; name a layer and a head, or record "
            'it with keep=sk.Keep(maps="all").'
        )
    return means.reshape(len(layers), len(heads), *means.shape[1:])


def find_slots(trace: Trace, layer: int | None, head: int | None) -> list[int]:
    """Which of the kept maps are of this layer and head (None: all), in the order of layers and heads."""
    if trace.maps is None or not trace.map_heads:
        raise TraceError(
            'Expected a trace with attention maps, and this one kept none; record it with keep=sk.Keep(maps="all").'
        )
    found = [
        slot
        for slot, (one_layer, one_head) in enumerate(trace.map_heads)
        if layer in (None, one_layer) and head in (None, one_head)
    ]
    if not found:
        kept = _write_heads(trace.map_heads)
        raise TraceError(f"Expected a layer and head whose map was kept ({kept}), got layer {layer} and head {head}.")
    return sorted(found, key=lambda slot: trace.map_heads[slot])


def _write_heads(heads: Sequence[tuple[int, int]]) -> str:
    """3.0, 3.1, …"""
    named = [f"{layer}.{head}" for layer, head in heads]
    return ", ".join(named[:8]) + (", …" if len(named) > 8 else "")


def _mean_pattern(trace: Trace, slot: int) -> Tensor:
    """[query, key]: over the steps that computed the query's row."""
    assert trace.maps is not None
    return trace.maps[slot].float().sum(0) / computed_steps(trace, slot)[:, None].clamp(min=1)


def _mean_scores(trace: Trace, slot: int) -> Tensor:
    if trace.mean_scores is None:
        raise TraceError("Expected a trace with mean scores, which older versions did not keep; record it again.")
    return trace.mean_scores[slot].float()


def computed_steps(trace: Trace, slot: int) -> Tensor:
    """How many steps computed each query's row, [query]: under a cache, or left to right, not all."""
    assert trace.maps is not None
    return (trace.maps[slot] > 0).any(-1).sum(0)


def by_distance(trace: Trace, layer: int | None = None, head: int | None = None) -> pl.DataFrame:
    """Attention by the distance key − query: layer, head, distance, attention, share, pairs.

    attention: the mean weight of the pairs of query and key at that distance, over all steps. share: of all that the head
    gave. pairs: how many there were. A query and a key that it never may see are no pair.
    """
    tables = [_distances_of(trace, slot) for slot in find_slots(trace, layer, head)]
    return pl.concat(tables)


def _distances_of(trace: Trace, slot: int) -> pl.DataFrame:
    assert trace.maps is not None
    positions, steps = trace.positions, computed_steps(trace, slot)
    place = torch.arange(positions)
    distance = (place[None] - place[:, None]).flatten() + positions - 1
    visible = torch.ones(positions, positions, dtype=torch.bool)
    if trace.mean_scores is not None:
        visible = ~trace.mean_scores[slot].isnan()
    weights = trace.maps[slot].double().sum(0).flatten()
    pairs = (visible * steps[:, None]).double().flatten()
    size = 2 * positions - 1
    given = torch.bincount(distance, weights, minlength=size)
    counted = torch.bincount(distance, pairs, minlength=size)
    there = counted > 0
    layer, head = trace.map_heads[slot]
    frame = pl.DataFrame(
        {
            "distance": (torch.arange(size) - positions + 1)[there].numpy(),
            "attention": (given / counted)[there].numpy(),
            "share": (given / given.sum())[there].numpy(),
            "pairs": counted[there].long().numpy(),
        }
    )
    return frame.select(pl.lit(layer).alias("layer"), pl.lit(head).alias("head"), pl.all())


def to_cache(trace: Trace, step: int) -> dict[str, Tensor]:
    """Name of TransformerLens → the maps of a layer at one step, [1, head, query, key]."""
    step = check_step(trace, step)
    find_slots(trace, None, None)
    assert trace.maps is not None
    slots = {pair: slot for slot, pair in enumerate(trace.map_heads)}
    found = {}
    for layer in range(trace.layers):
        own = [slots.get((layer, head)) for head in range(trace.heads_count)]
        kept = [slot for slot in own if slot is not None]
        if len(kept) == len(own):
            found[f"blocks.{layer}.attn.hook_pattern"] = trace.maps[kept, step].float()[None]
    if not found:
        raise TraceError(
            'Expected a layer whose heads all kept their maps, and this trace has none; record it with keep=sk.Keep(maps="all").'
        )
    return found


def check_step(trace: Trace, step: int) -> int:
    """A step of the trace by its number; negative ones count from the end."""
    if type(step) is not int or not -trace.steps <= step < trace.steps:
        raise TraceError(f"Expected a step from 0 to {trace.steps - 1}, got {step!r}.")
    return step % trace.steps
