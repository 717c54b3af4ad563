"""Parts of a trace as plain little-endian bytes, made when the page of `view` asks for them."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sinkscope.errors import ReportError
from sinkscope.report.sample import canvas_codes, largest, layer_means, leads, map_codes, totals
from sinkscope.sinks.columns import columns_by_layer, on_one_core
from sinkscope.sinks.heads import head_dynamics
from sinkscope.sinks.rules import GROUPS, rule_of_form
from sinkscope.tracing import Trace

Words = dict[str, str]


def canvas(trace: Trace, words: Words) -> bytes:
    """u4 codes [step + 1, position], then f2 confidence [step, position]."""
    return canvas_codes(trace).tobytes() + trace.confidence.half().numpy().tobytes()


@on_one_core
def plane(trace: Trace, words: Words) -> bytes:
    """f4 totals [step], then f4 column sums [step, key] of one head, of a layer's mean, or of the mean of all."""
    layer, head = _number(words, "layer", -1, trace.layers), _number(words, "head", -1, trace.heads_count)
    group = _group(words)
    values = _columns(trace, layer, head, group)
    return values.sum(-1).numpy().tobytes() + values.contiguous().numpy().tobytes()


def _columns(trace: Trace, layer: int, head: int, group: str) -> Tensor:
    if layer < 0:
        total = torch.zeros(trace.steps, trace.positions)
        for _, (received,) in columns_by_layer(trace, [group]):
            total += received.sum((1, 2))
        return total / (trace.layers * trace.heads_count)
    part = trace.select(layers=[layer], heads=None if head < 0 else [head])
    return part.scores(group)[:, 0].mean(1)


def paths(trace: Trace, words: Words) -> bytes:
    """f4 scores, f4 totals, u2 keys of each head's largest key, [layer, head, step] all three."""
    group = _group(words)
    keys, scores = largest(trace, group)
    return b"".join([scores.tobytes(), totals(trace, (group,))[0].tobytes(), keys.tobytes()])


def heads(trace: Trace, words: Words) -> bytes:
    """JSON: class, direction, mean score of the largest key and presence of each head, for any epsilon, unit and group."""
    table = head_dynamics(trace, rule_of_form(words.get("unit", "sum"), _epsilon(words), _group(words)))
    return json.dumps(table.select("class", "direction", "strength", "presence").fill_null(0).rows()).encode()


def lead(trace: Trace, words: Words) -> bytes:
    """u4 largest key per step, [1 + layer, step]: of the mean of all layers, then of each layer."""
    return leads(layer_means(trace)).astype(np.uint32).tobytes()


def attention(trace: Trace, words: Words) -> bytes:
    """u1 codes [query, key] of one kept attention map at one step."""
    if trace.maps is None:
        raise ReportError("This trace has no attention maps; keep some with Keep(maps=…).")
    slot, step = _number(words, "slot", 0, trace.maps.shape[0]), _number(words, "step", 0, trace.steps)
    return map_codes(trace.maps[slot, step]).tobytes()


def reasons(trace: Trace, words: Words) -> bytes:
    """f4 [4, key]: what a kept head's keys score at one step, and why."""
    if trace.reasons is None:
        raise ReportError("This trace has no reasons of sinks; they are kept with attention maps, Keep(maps=…).")
    slot, step = _number(words, "slot", 0, len(trace.reasons)), _number(words, "step", 0, trace.steps)
    return trace.reasons[slot, step].numpy().tobytes()


def _number(words: Words, name: str, low: int, stop: int) -> int:
    text = words.get(name, str(low))
    if not text.removeprefix("-").isdecimal() or not low <= int(text) < stop:
        raise ReportError(f"Expected {name} to be a whole number from {low} to {stop - 1}, got {text[:20]!r}.")
    return int(text)


def _epsilon(words: Words) -> float:
    text = words.get("epsilon", "3")
    try:
        return float(text)
    except ValueError:
        raise ReportError(f"Expected epsilon to be a number, got {text[:20]!r}.") from None


def _group(words: Words) -> str:
    group = words.get("group", "all")
    if group not in GROUPS:
        raise ReportError(f"Expected a group of queries among {', '.join(GROUPS)}, got {group[:20]!r}.")
    return group


SLICES: dict[str, Callable[[Trace, Words], bytes]] = {
    "canvas": canvas,
    "plane": plane,
    "paths": paths,
    "heads": heads,
    "lead": lead,
    "map": attention,
    "reasons": reasons,
}
