"""A trace as one safetensors file: tensors, and a JSON header with everything else."""

from __future__ import annotations

import json
import os
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sinkscope import io
from sinkscope.decoding.settings import Decode
from sinkscope.errors import DecodeError, TraceError
from sinkscope.fields import frozen, shown
from sinkscope.tracing.record import HINTS, SHAPES, WHOLE, Trace

# What a header of another kind, or of another depth, makes of the lines that read it.
_DAMAGED = (LookupError, AttributeError, TypeError, ValueError, RecursionError, OverflowError, DecodeError, TraceError)
NEEDED = ("queries", "canvas", "confidence", "committed_at", "blocks")
# Values of the header that stand there as they are.
PLAIN = [name for name in HINTS if name not in (*SHAPES, "settings", "vocabulary")]
FORMAT = "sinkscope.trace"
SCHEMA = 2
try:
    VERSION = packages.version("sinkscope")
except packages.PackageNotFoundError:  # run from a source tree without installing
    VERSION = "unknown"


def save(trace: Trace, path: Path) -> Path:
    """Write to a temporary name beside `path`, then rename: a reader never sees half a file."""
    header: dict[str, Any] = {name: getattr(trace, name) for name in PLAIN}
    header["settings"] = trace.settings.to_dict()
    header["vocabulary"] = {str(token): shown for token, shown in trace.vocabulary.items()}
    tensors = {name: getattr(trace, name).contiguous() for name in SHAPES if getattr(trace, name) is not None}
    metadata = {"format": FORMAT, "schema": str(SCHEMA), "sinkscope": VERSION, "header": json.dumps(header)}
    if not path.name or path.is_dir():
        raise TraceError(f"Expected a file to write the trace to, and {path} is a folder; name a file in it.")
    try:
        with io.whole(path) as partial:
            save_file(tensors, str(partial), metadata)
    except (OSError, ValueError, SafetensorError) as error:
        why = io.reason(error) if isinstance(error, OSError) else str(error)
        raise TraceError(f"The trace could not be written to {path} ({why}); nothing was left behind.") from None
    return path


def load(path: Path) -> Trace:
    """Read a trace; whatever its file holds, what comes back fits together, or a sentence says what does not."""
    if not os.path.isfile(path):
        raise TraceError(
            f"Expected a trace file, and there is none at {path}; make one with: sinkscope trace MODEL PROMPT -o FILE"
        )
    try:
        with path.open("rb") as start:  # a file of zeros would be mapped whole before anything is said of it
            if not any(start.read(8)):
                raise TraceError(f"{path} is not a whole trace file (it begins with zeros); record it again.")
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            _check_metadata(metadata, path)
            tensors = {name: file.get_tensor(name) for name in file.keys() if name in SHAPES}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise TraceError(f"{path} is not a whole trace file ({error}); record it again.") from None
    try:
        header = json.loads(metadata["header"])
        vocabulary = {int(token): (str(shown[0]), str(shown[1])) for token, shown in header["vocabulary"].items()}
        plain = {name: header[name] for name in PLAIN} | {"map_heads": frozen(header["map_heads"])}
        check_plain(plain)
        settings = Decode.from_dict(header["settings"])
        made = {name: tensors.get(name) for name in SHAPES}
        check_tensors(made, plain, vocabulary)
        return Trace(**made, **plain, settings=settings, vocabulary=vocabulary)  # type: ignore[arg-type]
    except _DAMAGED as error:
        writer = metadata.get("sinkscope", VERSION)
        if writer != VERSION:  # it may have settings or kinds of tensors that came later
            raise TraceError(
                f"{path} was written by sinkscope {writer[:20]} and cannot be read by {VERSION} ({error}); update sinkscope."
            ) from None
        raise TraceError(
            f"{path} is a trace file with a damaged header or tensor ({error}); record it again."
        ) from None


def _check_metadata(metadata: dict[str, str], path: Path) -> None:
    if metadata.get("format") != FORMAT:
        raise TraceError(
            f"Expected a trace, and {path} is a safetensors file of another kind; was it written by Trace.save?"
        )
    schema = metadata.get("schema", "")
    if not (schema.isascii() and schema.isdecimal()) or int(schema[:9]) != SCHEMA:
        raise TraceError(
            f"{path} has trace schema {schema[:20]!r}, and this version reads {SCHEMA}; update sinkscope, or record it again."
        )


def check_plain(plain: dict[str, Any]) -> None:
    """Every value of the header has the type of its field."""
    for name, value in plain.items():
        try:
            TypeAdapter(HINTS[name]).validate_python(value, strict=True)
        except ValidationError:
            raise TraceError(f"{name} is {shown(value, 60)}") from None


def check_tensors(tensors: dict[str, Tensor | None], plain: dict[str, Any], vocabulary: dict[int, Any]) -> None:
    """All tensors are there and agree on how many steps, layers, heads and keys the trace has."""
    for name in NEEDED:
        if tensors.get(name) is None:
            raise TraceError(f"the tensor {name} is missing")
    summary = [tensors.get(name) for name in ("layer_mean", "top_keys", "top_scores")]
    if tensors.get("received") is None and any(one is None for one in summary):
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
            word, found = ("step", size - 1) if letter == "step+1" else (letter, size)
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
    if (tensors.get("lens_tokens") is None) != (tensors.get("lens_probability") is None):
        raise TraceError("the lens has tokens without probabilities, or the other way round")
    for name in ("canvas", "lens_tokens"):
        tensor = tensors.get(name)
        if tensor is not None and (unknown := set(tensor.unique().tolist()) - vocabulary.keys()):
            raise TraceError(f"{name} has the token {min(unknown)}, which its vocabulary does not name")
