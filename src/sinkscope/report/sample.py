"""One trace as the page holds it: a header of plain data and a blob of packed arrays.

Two details of a sample exist. `full` keeps received attention of every head bit for bit as the trace has it (fp16 or
fp32), and the total of each map as the sink rules add it up. The page repeats Eq. 3 on these numbers in fp32 and marks
exactly what `trace.sinks` says. `compact` keeps the mean over the heads of each layer, quantised to 8
bits, and the largest key of each head and step. It also keeps the exact columns of the heads that the page opens on or that
the trace kept attention maps of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from sinkscope.report.page import Blob, quantise
from sinkscope.sinks.rules import GROUPS, QUERY_GROUPS, Columns
from sinkscope.tracing import Trace
from sinkscope.tracing.heads import head_dynamics, notable
from sinkscope.tracing.trace import single_threaded

LONGEST_TEXT = 4000  # characters of prompt and answer that a header holds
LONGEST_TOKEN = 400
MAP_BYTES = LENS_BYTES = 4 << 20  # raw size up to which kept attention maps, and the lens, go into the page
LONGEST_WORD = 100  # characters of a token in the lens

LONG = 10  # steps from which a move can be followed by the eye; shorter generations only where there is no longer one
# Per compact sample, beside those with attention maps: the furthest relocating and the firmest static one.
OWN_HEADS = 2

Floats = npt.NDArray[np.float32]


def full_size(trace: Trace) -> int:
    """Bytes of a full sample before compression."""
    cells = trace.steps * trace.layers * trace.heads_count
    size = 2 if trace.received is None else trace.received.dtype.itemsize
    return cells * len(QUERY_GROUPS) * trace.positions * size + cells * (len(GROUPS) + 2) * 4


def header(trace: Trace, name: str, classes: bool = True) -> dict[str, Any]:
    """What the page knows of a sample before it unpacks anything; classes of heads take a pass over the trace."""
    ids = sorted({int(i) for i in trace.canvas.unique()})
    shown = [trace.vocabulary.get(i, (f"#{i}", "unknown")) for i in ids]
    return {
        "name": name,
        "model": model_of(trace),
        "family": str(trace.model.get("family", "")),
        "prompt": trace.prompt[:LONGEST_TEXT],
        "text": trace.text[:LONGEST_TEXT],
        "steps": trace.steps,
        "layers": trace.layers,
        "heads": trace.heads_count,
        "positions": trace.positions,
        "promptLength": trace.prompt_length,
        "causal": trace.causal,
        "backend": trace.backend,
        "settings": {key: value for key, value in trace.settings.to_dict().items() if value is not None},
        "interventions": trace.interventions,
        "queries": trace.queries.tolist(),
        "alive": trace.alive().sum(-1).tolist() if trace.causal else None,
        "blocks": trace.blocks.tolist(),
        "committedAt": trace.committed_at.tolist(),
        "vocabulary": [[text[:LONGEST_TOKEN], kind] for text, kind in shown],
        "mapHeads": [list(pair) for pair in trace.map_heads] if trace.maps is not None else [],
        "whyHeads": [list(pair) for pair in trace.map_heads] if trace.reasons is not None else [],
        "classes": head_classes(head_table(trace)) if classes else None,
        "form": trace.form,
    }


_heads: WeakKeyDictionary[Trace, pl.DataFrame] = WeakKeyDictionary()


def head_table(trace: Trace) -> pl.DataFrame:
    """`trace.heads()` by the default rule, worked out once per trace."""
    if trace not in _heads:
        _heads[trace] = head_dynamics(trace)
    return _heads[trace]


def head_classes(table: pl.DataFrame) -> list[tuple[str, str | None]]:
    """Class and direction of each head, layer by layer."""
    return list(zip(table["class"].to_list(), table["direction"].to_list(), strict=True))


def typical_heads(traces: Sequence[Trace], models: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One head of the first autoregressive and of the first diffusion model: of those whose sink stays, the strongest one.

    Only models as they are, and traces that hold every head; where no sink stays, the strongest sink of all. models: those
    that are shown if they were traced, such as the two that the findings compare.
    """
    found = []
    for causal in (True, False):
        plain = [
            (place, trace)
            for place, trace in enumerate(traces)
            if trace.causal is causal and not trace.interventions and trace.steps > 1 and trace.received is not None
        ]
        if plain:  # the first that is long enough to be watched
            place, trace = max(plain, key=lambda one: (model_of(one[1]) in models, min(one[1].steps, LONG)))
            rows = head_table(trace).filter(pl.col("class") != "none").to_dicts()
            if rows:
                row = max(rows, key=lambda one: (one["class"] == "static", one["strength"] or 0.0))
                found.append(_head_entry(place, trace, row))
    return found


def _head_entry(place: int, trace: Trace, row: dict[str, Any]) -> dict[str, Any]:
    kind = "autoregressive" if trace.causal else "diffusion"
    return {
        "sample": place, "layer": row["layer"], "head": row["head"],
        "title": f"{model_of(trace)} ({kind}), layer {row['layer']}, head {row['head']}",
    }  # fmt: skip


def sink_ends(trace: Trace) -> list[list[int]]:
    """Position of each head's largest key at the first and the last step of the answer at which it is a sink; heads with one only.

    A step of an autoregressive model is one row: its sinks are those of all rows so far.
    """
    whole = trace.cumulative() if trace.causal else trace
    steps = whole.part_steps("answer")
    table = (whole.part("answer") if steps.stop else whole).sinks()
    if not table.height:
        return []
    best = table.sort("score", descending=True).group_by("layer", "head", "step", maintain_order=True).first()
    ends = (
        best.sort("step")
        .group_by("layer", "head", maintain_order=True)
        .agg(pl.col("position").first().alias("first"), pl.col("position").last().alias("last"))
    )
    return [[int(first), int(last)] for first, last in ends.select("first", "last").rows()]


def model_of(trace: Trace) -> str:
    return str(trace.model.get("name", "model"))


def canvas_codes(trace: Trace) -> npt.NDArray[np.uint32]:
    """Each place's index into the header's vocabulary, `[step + 1, position]`."""
    canvas = trace.canvas.numpy()
    return np.searchsorted(np.unique(canvas), canvas).astype(np.uint32)


def full(trace: Trace, name: str) -> tuple[dict[str, Any], Blob]:
    """A sample with every head; exact."""
    assert trace.received is not None
    blob = Blob()
    received = trace.received.permute(3, 1, 2, 0, 4).contiguous().numpy()  # [group, layer, head, step, key]
    blob.add("received", received, "planes")
    blob.add("totals", totals(trace), "planes")
    blob.add("splitTotals", split_totals(trace), "planes")
    return _common(trace, name, blob, {"detail": "full", "lead": leads(layer_means(trace)).tolist()})


def compact(trace: Trace, name: str) -> tuple[dict[str, Any], Blob]:
    """A sample with the mean over each layer's heads, and each head's largest key."""
    blob, means = Blob(), layer_means(trace)
    codes, table = quantise(means)
    blob.add("means", codes, "steps")
    blob.add("table", table, "planes")
    key, score = largest(trace)
    code, path_table = quantise(score)
    blob.add("pathKeys", key, "planes")
    blob.add("pathScores", code, "planes")
    blob.add("pathTable", path_table, "planes")
    own = own_heads(trace)
    if own:
        assert trace.received is not None
        layers, heads = map(list, zip(*own, strict=True))
        received = trace.received[:, layers, heads]  # [step, slot, group, key]
        blob.add("received", received.permute(2, 1, 0, 3).contiguous().numpy(), "planes")  # [group, slot, step, key]
        blob.add("totals", np.ascontiguousarray(totals(trace)[:, layers, heads]), "planes")
    about = {"detail": "compact", "lead": leads(means).tolist(), "ownHeads": [list(one) for one in own]}
    return _common(trace, name, blob, about)


def own_heads(trace: Trace) -> list[tuple[int, int]]:
    """(layer, head) of the heads whose own columns a compact sample keeps; none of a trace in summary form."""
    if trace.received is None:
        return []
    first = {(one["layer"], one["head"]) for one in typical_heads([trace])}
    return sorted({*first, *notable(head_table(trace), OWN_HEADS), *trace.map_heads})


def _common(trace: Trace, name: str, blob: Blob, about: dict[str, Any]) -> tuple[dict[str, Any], Blob]:
    """What both details have beside their own arrays; maps, reasons and the lens where they are small enough."""
    head, codes = {**header(trace, name), **about}, canvas_codes(trace)
    blob.add("canvas", codes.astype(np.uint16) if codes.max() < 2**16 else codes, "steps")
    blob.add("confidence", trace.confidence.half().numpy(), "planes")
    if trace.seen is not None:
        blob.add("seen", np.stack([seen_counts(trace, group) for group in GROUPS]), "steps")
    if trace.maps is not None and trace.maps.numel() <= MAP_BYTES:
        blob.add("maps", map_codes(trace.maps), "planes")
    else:
        head["mapHeads"] = []
    if trace.reasons is not None and 4 * trace.reasons.numel() <= MAP_BYTES:
        blob.add("reasons", trace.reasons.float().numpy(), "planes")
    else:
        head["whyHeads"] = []
    return {**head, "lens": add_lens(trace, blob), "parts": blob.index}, blob


def seen_counts(trace: Trace, group: str) -> npt.NDArray[np.uint32]:
    """How many queries of a group see each key, `[step, key]`."""
    return trace.seen_by(group).numpy().astype(np.uint32)


def map_codes(maps: Tensor) -> npt.NDArray[np.uint8]:
    """Attention as 0 … 255 by its square root, which keeps small weights apart; shown, never counted with."""
    return (maps.float().clamp(0, 1).sqrt() * 255).round().to(torch.uint8).numpy()


def add_lens(trace: Trace, blob: Blob) -> dict[str, Any] | None:
    """Pack the lens into the blob; what the header says of it, or None where the trace has none or too much of it."""
    tokens, sure = trace.lens_tokens, trace.lens_probability
    if tokens is None or sure is None or 3 * tokens.numel() > LENS_BYTES:
        return None
    # Probabilities as 0 … 255; a token that was not looked up has 0.
    codes = (sure.float().clamp(0, 1) * 255).round().to(torch.uint8)
    ids, places = np.unique(tokens.numpy(), return_inverse=True)
    if len(ids) > 2**16:
        return None
    order = (3, 1, 0, 2)  # [position, layer, step, choice]: one position is one piece
    blob.add("lensTokens", places.reshape(tokens.shape).astype(np.uint16).transpose(order).copy(), "planes")
    blob.add("lensSure", codes.permute(order).contiguous().numpy(), "planes")
    words = [trace.vocabulary.get(int(token), (f"#{token}", "unknown"))[0][:LONGEST_WORD] for token in ids]
    return {"words": words, "top": int(tokens.shape[2])}


@single_threaded
def totals(trace: Trace, groups: Sequence[str] = GROUPS) -> Floats:
    """Sum of each map's columns, `[group, layer, head, step]`, added up exactly as `Threshold.limit` does it."""
    found = []
    for group in groups:
        queries, missing, _ = trace.rule_columns(group)
        chunks = [Columns.of(r, queries, missing).received.sum(-1) for _, (r,) in trace.columns_by_layer(group)]
        found.append(torch.cat(chunks, 1).permute(1, 2, 0))
    return torch.stack(found).numpy()


@single_threaded
def split_totals(trace: Trace) -> Floats:
    """Totals of the masked and the committed queries' columns, each scaled up to a whole map as `sinks.split` does it.

    `[2, layer, head, step]`; the page needs them to find heads whose kinds of query have sinks of their own.
    """
    kinds = ("masked", "committed")
    whole = [trace.positions / trace.query_count(kind).clamp(min=1) for kind in kinds]  # [step] each
    chunks = []
    for _, columns in trace.columns_by_layer(*kinds):
        sums = [(part * scale[:, None, None, None]).sum(-1) for part, scale in zip(columns, whole, strict=True)]
        chunks.append(torch.stack(sums))  # [kind, step, layer, head]
    found: Floats = torch.cat(chunks, 2).permute(0, 2, 3, 1).contiguous().numpy()
    return found


@single_threaded
def layer_means(trace: Trace) -> Floats:
    """Mean over each layer's heads of what keys received, `[group, layer, step, key]`."""
    if trace.layer_mean is not None:
        kept: Floats = trace.layer_mean.float().permute(2, 1, 0, 3).contiguous().numpy()
        return kept
    parts = (groups for _, groups in trace.columns_by_layer(*QUERY_GROUPS))
    chunks = [torch.stack([columns.mean(2) for columns in groups]) for groups in parts]  # [group, step, layer, key]
    means: Floats = torch.cat(chunks, 2).transpose(1, 2).contiguous().numpy()
    return means


@single_threaded
def largest(trace: Trace, group: str = "all") -> tuple[npt.NDArray[np.uint16], Floats]:
    """Each head's largest key per step and its column sum, `[layer, head, step]` both."""
    keys, scores = [], []
    for _, (received,) in trace.columns_by_layer(group):
        values = received.numpy()
        key = values.argmax(-1)
        keys.append(key.astype(np.uint16))
        scores.append(np.take_along_axis(values, key[..., None], -1)[..., 0])
    return np.concatenate(keys, 1).transpose(1, 2, 0), np.concatenate(scores, 1).transpose(1, 2, 0)


def leads(means: Floats) -> npt.NDArray[np.int64]:
    """Largest key per step, `[1 + layer, step]`, of the mean of all layers and then of each; means as `layer_means`."""
    layers = means.sum(0)
    found: npt.NDArray[np.int64] = np.concatenate([layers.mean(0, keepdims=True), layers]).argmax(-1)
    return found
