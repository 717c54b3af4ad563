"""A trace as one safetensors file: tensors, and a JSON header with everything else."""

from __future__ import annotations

import json
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError, create_model
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sinkscope.decoding.settings import Decode
from sinkscope.errors import DecodeError, TraceError
from sinkscope.files import describe_error, replace_file
from sinkscope.tracing.trace import HINTS, SHAPES, WHOLE, Trace
from sinkscope.validation import sentence

NEEDED = ("queries", "canvas", "confidence", "committed_at", "blocks")
FORMAT = "sinkscope.trace"
SCHEMA = 2
try:
    VERSION = packages.version("sinkscope")
except packages.PackageNotFoundError:  # run from a source tree without installing
    VERSION = "unknown"
_FIELDS: dict[str, Any] = {name: (hint, ...) for name, hint in HINTS.items() if name not in SHAPES}
HEADER = create_model("Header", **{**_FIELDS, "settings": (dict[str, Any], ...)})


def save(trace: Trace, path: Path) -> Path:
    """Write to a temporary name beside `path`, then rename: a reader never sees half a file."""
    header = {name: getattr(trace, name) for name in _FIELDS} | {"settings": trace.settings.to_dict()}
    tensors = {name: getattr(trace, name).contiguous() for name in SHAPES if getattr(trace, name) is not None}
    metadata = {"format": FORMAT, "schema": str(SCHEMA), "sinkscope": VERSION, "header": json.dumps(header)}
    if not path.name or path.is_dir():
        raise TraceError(f"Expected a file to write the trace to, and {path} is a folder; name a file in it.")
    try:
        with replace_file(path) as partial:
            save_file(tensors, str(partial), metadata)
    except (OSError, ValueError, SafetensorError) as error:
        why = describe_error(error)
        raise TraceError(f"The trace could not be written to {path} ({why}); nothing was left behind.") from None
    return path


def load(path: Path) -> Trace:
    """Read a trace; whatever its file holds, what comes back fits together, or a sentence says what does not."""
    if path.is_dir():
        raise TraceError(describe_folder(path))
    if not path.is_file():
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
        raise TraceError(f"{path} is not a whole trace file ({describe_error(error)}); record it again.") from None
    try:
        header = dict(HEADER.model_validate_json(metadata.get("header", ""), strict=True))
        settings = Decode.from_dict(header.pop("settings"))
        check_tensors(tensors, header)
    except ValidationError as error:
        raise TraceError(f"{sentence(error, f'The header of {path}')} Record the trace again.") from None
    except (DecodeError, TraceError, OverflowError) as error:
        why = describe_error(error)
        writer = metadata.get("sinkscope", VERSION)
        if writer != VERSION:  # it may have settings or kinds of tensors that came later
            raise TraceError(
                f"{path} was written by sinkscope {writer[:20]} and cannot be read by {VERSION} ({why}); update sinkscope."
            ) from None
        raise TraceError(f"{path} is a trace file with a damaged header or tensor ({why}); record it again.") from None
    return Trace(**{name: tensors.get(name) for name in SHAPES}, **header, settings=settings)  # type: ignore[arg-type]


def describe_folder(path: Path) -> str:
    """What to do where a folder was named instead of a trace."""
    kept = sorted([*path.glob("traces/*.safetensors"), *path.glob("*.trace")])
    if kept:
        return f"Expected a trace file, and {path} is a folder with {len(kept)} of them; name one, such as {kept[0]}"
    if (path / "results.json").is_file():
        return f"Expected a trace file, and {path} is a run that kept no traces; look at it with: sinkscope report {path} --text"
    return f"Expected a trace file, and {path} is a folder without one; make one with: sinkscope trace MODEL PROMPT -o FILE"


def _check_metadata(metadata: dict[str, str], path: Path) -> None:
    if metadata.get("format") != FORMAT:
        raise TraceError(
            f"Expected a trace, and {path} is a safetensors file of another kind; was it written by Trace.save?"
        )
    if (schema := metadata.get("schema", "")) != str(SCHEMA):
        raise TraceError(
            f"{path} has trace schema {schema[:20]!r}, and this version reads {SCHEMA}; record it again, or update sinkscope."
        )


def check_tensors(tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """All tensors are there and agree on how many steps, layers, heads and keys the trace has."""
    received = ("received",) if "received" in tensors else ("layer_mean", "top_keys", "top_scores")
    if missing := [name for name in (*NEEDED, *received) if name not in tensors]:
        raise TraceError(f"the tensor {missing[0]} is missing")
    sizes: dict[str, int] = {"map": len(header["map_heads"])}
    for name, tensor in tensors.items():
        shape = SHAPES[name]
        if tensor.ndim != len(shape) or 0 in tensor.shape:
            raise TraceError(f"{name} has the shape {list(tensor.shape)}")
        if tensor.is_floating_point() == (name in WHOLE) or tensor.is_complex() or tensor.dtype == torch.bool:
            raise TraceError(f"{name} is {tensor.dtype}")
        for size, letter in zip(tensor.shape, shape, strict=True):
            word, found = ("step", size - 1) if letter == "step+1" else (letter, size)
            expected = word if isinstance(word, int) else sizes.setdefault(word, found)
            if found != expected:
                raise TraceError(f"{name} has {size} where {letter} is {expected}")
    _check_values(tensors, header, sizes)


def _check_values(tensors: dict[str, Tensor], header: dict[str, Any], sizes: dict[str, int]) -> None:
    """What other code counts with stays within the trace."""
    prompt, end = header["prompt_length"], header["answer_end"]
    if not 0 <= prompt <= sizes["key"] or not (end is None or prompt <= end <= sizes["key"]):
        raise TraceError(f"prompt_length is {prompt} and answer_end {end} of {sizes['key']} positions")
    most = (1 << 31) - 1
    bounds = {
        "committed_at": (-1, sizes["step"] - 1),
        "top_keys": (0, sizes["key"] - 1),
        "queries": (0, most),
        "seen": (0, most),
    }
    for name, (low, high) in bounds.items():
        tensor = tensors.get(name)
        if tensor is not None and not bool(((tensor >= low) & (tensor <= high)).all()):
            raise TraceError(f"{name} is not within {low} and {high}")
    if ("lens_tokens" in tensors) != ("lens_probability" in tensors):
        raise TraceError("the lens has tokens without probabilities, or the other way round")
    for name in ("canvas", "lens_tokens"):
        tensor = tensors.get(name)
        if tensor is not None and (unknown := set(tensor.unique().tolist()) - header["vocabulary"].keys()):
            raise TraceError(f"{name} has the token {min(unknown)}, which its vocabulary does not name")
