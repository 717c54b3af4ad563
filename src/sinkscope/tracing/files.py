"""A trace as one safetensors file: tensors, and a JSON header with everything else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sinkscope.errors import DecodeError, TraceError
from sinkscope.settings.decode import Decode
from sinkscope.tracing.record import TENSORS, Trace

FORMAT = "sinkscope.trace"
SCHEMA = 1
PLAIN = ("prompt_length", "model", "backend", "mask_id", "causal", "prompt", "text", "interventions", "map_heads")


def save(trace: Trace, path: Path) -> Path:
    """Write to a temporary name beside `path`, then rename: a reader never sees half a file."""
    header: dict[str, Any] = {name: getattr(trace, name) for name in PLAIN}
    header["settings"] = trace.settings.to_dict()
    header["vocabulary"] = {str(token): shown for token, shown in trace.vocabulary.items()}
    tensors = {name: getattr(trace, name).contiguous() for name in TENSORS if getattr(trace, name) is not None}
    metadata = {"format": FORMAT, "schema": str(SCHEMA), "header": json.dumps(header)}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(partial), metadata)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        if partial.is_file():
            partial.unlink()
        raise TraceError(f"The trace could not be written to {path} ({error}); nothing was left behind.") from None
    return path


def load(path: Path) -> Trace:
    if not path.is_file():
        raise TraceError(
            f"Expected a trace file, and there is none at {path}; make one with: sinkscope trace MODEL PROMPT -o FILE"
        )
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            _check_metadata(metadata, path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise TraceError(f"{path} is not a whole trace file ({error}); record it again.") from None
    try:
        header = json.loads(metadata["header"])
        vocabulary = {int(token): (str(shown[0]), str(shown[1])) for token, shown in header["vocabulary"].items()}
        plain = {name: header[name] for name in PLAIN}
        plain["map_heads"] = tuple((int(layer), int(head)) for layer, head in plain["map_heads"])
        settings = Decode.from_dict(header["settings"])
        made = {name: tensors.get(name) for name in TENSORS}
        return Trace(**made, **plain, settings=settings, vocabulary=vocabulary)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, DecodeError) as error:
        raise TraceError(f"{path} is a trace file with a damaged header ({error}); record it again.") from None


def _check_metadata(metadata: dict[str, str], path: Path) -> None:
    if metadata.get("format") != FORMAT:
        raise TraceError(
            f"Expected a trace, and {path} is a safetensors file of another kind; was it written by Trace.save?"
        )
    if not metadata.get("schema", "").isdigit() or int(metadata["schema"]) > SCHEMA:
        raise TraceError(
            f"{path} has trace schema {metadata.get('schema')!r}, newer than the {SCHEMA} that this version reads; "
            "update sinkscope."
        )
