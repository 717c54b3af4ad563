"""What a trace must be, whatever wrote its file: shapes that fit together, and plain values of the right types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.context import GROUPS
from sinkscope.errors import TraceError

# Field → its dimensions; the same letter is the same size in all of them. Numbers are sizes that are known.
SHAPES: dict[str, tuple[str | int, ...]] = {
    "queries": ("step", len(GROUPS)),
    "canvas": ("step + 1", "key"),
    "confidence": ("step", "key"),
    "committed_at": ("key",),
    "edits": ("key",),
    "blocks": ("step", 2),
    "received": ("step", "layer", "head", len(GROUPS), "key"),
    "layer_mean": ("step", "layer", len(GROUPS), "key"),
    "top_keys": ("step", "layer", "head", len(GROUPS), "top"),
    "top_scores": ("step", "layer", "head", len(GROUPS), "top"),
    "value_norms": ("step", "layer", "kv head", "key"),
    "hidden_norms": ("step", "layer", "key"),
    "lens_tokens": ("step", "layer", "choice", "key"),
    "lens_probability": ("step", "layer", "choice", "key"),
    "channels": ("step", "layer", "channel"),
    "channel_values": ("step", "layer", "channel", "key"),
    "maps": ("map", "step", "key", "key"),
    "reasons": ("map", "step", 4, "key"),
}
NEEDED = ("queries", "canvas", "confidence", "committed_at", "blocks")
WHOLE = ("queries", "canvas", "committed_at", "edits", "blocks", "top_keys", "lens_tokens", "channels")
TYPES: dict[str, tuple[type, ...]] = {
    "prompt_length": (int,),
    "model": (dict,),
    "backend": (str,),
    "mask_id": (int, type(None)),
    "causal": (bool,),
    "prompt": (str,),
    "text": (str,),
    "interventions": (list,),
    "map_heads": (list, tuple),
}


def check_plain(plain: dict[str, Any]) -> None:
    """Every value of the header has a type that it may have."""
    for name, types in TYPES.items():
        value = plain[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise TraceError(f"{name} is {_short(value)}")
    if any(not isinstance(one, dict) for one in plain["interventions"]):
        raise TraceError("interventions are no list of settings")


def check_tensors(tensors: dict[str, Tensor | None], plain: dict[str, Any], vocabulary: dict[int, Any]) -> None:
    """All tensors are there and agree on how many steps, layers, heads and keys the trace has."""
    for name in NEEDED:
        if tensors.get(name) is None:
            raise TraceError(f"the tensor {name} is missing")
    summary = [name for name in ("layer_mean", "top_keys", "top_scores") if tensors.get(name) is not None]
    if tensors.get("received") is None and len(summary) < 3:
        raise TraceError("received attention is missing")
    sizes: dict[str, int] = {"map": len(plain["map_heads"])}
    for name, shape in SHAPES.items():
        tensor = tensors.get(name)
        if tensor is None:
            continue
        if tensor.ndim != len(shape) or 0 in tensor.shape:
            raise TraceError(f"{name} has the shape {list(tensor.shape)}")
        if tensor.is_floating_point() == (name in WHOLE) or tensor.is_complex() or tensor.dtype == torch.bool:
            raise TraceError(f"{name} is {tensor.dtype}")
        for size, letter in zip(tensor.shape, shape, strict=True):
            word, found = ("step", size - 1) if letter == "step + 1" else (letter, size)
            expected = word if isinstance(word, int) else sizes.setdefault(word, found)
            if found != expected:
                raise TraceError(f"{name} has {size} where {letter} is {expected}")
    _check_values(tensors, plain["prompt_length"], vocabulary, sizes)


def _check_values(
    tensors: dict[str, Tensor | None], prompt: int, vocabulary: dict[int, Any], sizes: dict[str, int]
) -> None:
    """What other code counts with stays within the trace."""
    if not 0 <= prompt <= sizes["key"]:
        raise TraceError(f"prompt_length is {prompt} of {sizes['key']} positions")
    bounds = {"committed_at": (-1, sizes["step"] - 1), "top_keys": (0, sizes["key"] - 1), "queries": (0, (1 << 31) - 1)}
    for name, (low, high) in bounds.items():
        tensor = tensors.get(name)
        if tensor is not None and not bool(((tensor >= low) & (tensor <= high)).all()):
            raise TraceError(f"{name} is not within {low} and {high}")
    canvas = tensors["canvas"]
    assert canvas is not None
    if unknown := set(canvas.unique().tolist()) - vocabulary.keys():
        raise TraceError(f"the canvas has the token {min(unknown)}, which its vocabulary does not name")
    lens = tensors.get("lens_tokens")
    if (lens is None) != (tensors.get("lens_probability") is None):
        raise TraceError("the lens has tokens without probabilities, or the other way round")
    if lens is not None and (unknown := set(lens.unique().tolist()) - vocabulary.keys()):
        raise TraceError(f"the lens has the token {min(unknown)}, which its vocabulary does not name")


def picked(name: str, asked: Any, count: int) -> list[int] | None:
    """Numbers of layers or heads out of `count`, from a slice or a sequence; None for all."""
    if asked is None:
        return None
    if isinstance(asked, slice):
        found = list(range(count))[asked]
    else:
        several = asked.tolist() if isinstance(asked, Tensor) else asked
        if not isinstance(several, Sequence) or any(type(one) is not int for one in several):
            raise TraceError(f"Expected {name} as a slice or a list of whole numbers, got {_short(asked)}.")
        found = list(several)
    if not found or any(not -count <= one < count for one in found):
        raise TraceError(f"Expected {name} from 0 to {count - 1}, at least one, got {_short(asked)}.")
    return found


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}…"
