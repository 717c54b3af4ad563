"""A checkpoint folder on disk, looked at before anything is loaded: config, weight files, headers, fingerprint."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sinkscope.errors import CheckpointError
from sinkscope.models.boundary import (
    LARGEST_CONFIG,
    LARGEST_HEADER,
    LARGEST_INDEX,
    parsed_object,
    read_object,
    refuse_odd_files,
    shown,
)
from sinkscope.models.sizes import checked_config

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
FIRST_BYTES = 1 << 16


def read_config(folder: Path) -> dict[str, Any]:
    """config.json with every plain field checked, and without the fields that would choose code."""
    path = folder / "config.json"
    refuse_odd_files(folder)
    if not path.is_file():
        raise CheckpointError(
            f"Expected a checkpoint folder with config.json, and {folder} has none; "
            "name the folder that holds config.json and the .safetensors files."
        )
    return checked_config(read_object(path, LARGEST_CONFIG), shown(path))


def weight_files(folder: Path) -> list[Path]:
    """The .safetensors files of a checkpoint, single or sharded, each whole; pickle is refused by name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = read_object(index, LARGEST_INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"Expected a weight_map in {index}, and it has none; fetch the file again.")
        names = sorted(set(shards.values()))
        for name in names:
            if Path(name).name != name or not name.isprintable() or not name.endswith(".safetensors"):
                raise CheckpointError(
                    f"Expected shards inside {folder}, got {shown(repr(name))}; fetch the checkpoint again."
                )
            if not (folder / name).is_file():
                raise CheckpointError(
                    f"{index.name} names the shard {shown(name)}, which is not in {folder}; fetch it."
                )
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("model*.safetensors")) or sorted(
            path for path in folder.glob("*.safetensors") if path.name != "golden.safetensors"
        )
    if not files:
        pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
        if pickled:
            raise CheckpointError(
                f"Expected .safetensors weights in {folder}, found only pickle ({', '.join(pickled[:3])}), which can "
                "run code when opened and is refused; convert it to safetensors on a machine where you trust it."
            )
        raise CheckpointError(f"Expected .safetensors weights in {folder}, found none; is the download complete?")
    for path in files:
        read_header(path)
    return files


def read_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file, after checking that the file is as long as the header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length <= 0 or length > size - 8 or length > LARGEST_HEADER:
            raise CheckpointError(f"{path} is not a whole safetensors file ({size} bytes); fetch it again.")
        header = parsed_object(file.read(length), f"the header of {shown(path)}")
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    for name, entry in entries:
        if not _is_entry(entry):
            raise CheckpointError(
                f"{path} says of {shown(repr(name))} no dtype, shape and place that a tensor can have; fetch it again."
            )
    ends = [entry["data_offsets"][1] for _, entry in entries]
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise CheckpointError(
            f"Expected {expected} bytes in {path}, got {size}: the file is cut short; fetch it again."
        )
    return header


def _is_entry(entry: Any) -> bool:
    """A dtype, a shape of few sizes, and two places in order."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, places = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or len(shape) > 16 or not isinstance(places, list) or len(places) != 2:
        return False
    return all(type(one) is int and 0 <= one < 1 << 48 for one in (*shape, *places)) and places[0] <= places[1]


def fingerprint(files: list[Path]) -> str:
    """sha256 of every weight file's header and first bytes: cheap at 16 GB, and it changes with the weights."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            start = file.read(8)
            digest.update(start)
            digest.update(file.read(min(int.from_bytes(start, "little"), 1 << 26)))
            digest.update(file.read(FIRST_BYTES))
    return digest.hexdigest()


def gguf_fingerprint(path: Path) -> str:
    """sha256 of a GGUF file's first and last MiB: its tokenizer, names and shapes, and some of its weights."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(1 << 20))
        file.seek(max(path.stat().st_size - (1 << 20), 0))
        digest.update(file.read())
    return digest.hexdigest()
