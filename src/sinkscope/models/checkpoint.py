"""A checkpoint folder on disk, looked at before anything is loaded: config, weight files, headers, fingerprint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from sinkscope.errors import CheckpointError

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
FIRST_BYTES = 1 << 16


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"Expected a checkpoint folder with config.json, and {folder} has none; "
            "name the folder that holds config.json and the .safetensors files."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"Expected JSON in {path}, and it cannot be read ({error}); fetch the file again."
        ) from None
    if not isinstance(config, dict):
        raise CheckpointError(f"Expected a JSON object in {path}, got a {type(config).__name__}; fetch the file again.")
    return config


def weight_files(folder: Path) -> list[Path]:
    """The .safetensors files of a checkpoint, single or sharded, each whole; pickle is refused by name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (json.JSONDecodeError, KeyError, AttributeError, UnicodeDecodeError):
            raise CheckpointError(f"Expected a weight_map in {index}, and it has none; fetch the file again.") from None
        files = [folder / name for name in names]
        for path in files:
            if path.resolve().parent != folder.resolve() and not path.is_file():
                raise CheckpointError(f"Expected shards inside {folder}, got {path}; fetch the checkpoint again.")
            if not path.is_file():
                raise CheckpointError(f"{index.name} names the shard {path.name}, which is not in {folder}; fetch it.")
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
        if size < 8 or length <= 0 or length > size - 8:
            raise CheckpointError(f"{path} is not a whole safetensors file ({size} bytes); fetch it again.")
        try:
            header = json.loads(file.read(length))
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise CheckpointError(f"{path} has no readable safetensors header; fetch it again.") from None
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise CheckpointError(
            f"Expected {expected} bytes in {path}, got {size}: the file is cut short; fetch it again."
        )
    return dict(header)


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
