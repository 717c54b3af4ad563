"""A checkpoint folder on disk, looked at before anything is loaded: config, weight files, headers, fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sinkscope.errors import CheckpointError
from sinkscope.io.reading import read_object, reason, short
from sinkscope.models.boundary import LARGEST_CONFIG, LARGEST_INDEX, refuse_odd_files
from sinkscope.models.sizes import Header, checked_config

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
    return checked_config(read_object(path, LARGEST_CONFIG, CheckpointError, "fetch it again"), short(path))


def weight_files(folder: Path) -> dict[Path, Header]:
    """The .safetensors files of a checkpoint, single or sharded, each whole, with their headers; pickle is refused by name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = read_object(index, LARGEST_INDEX, CheckpointError, "fetch it again").get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"Expected a weight_map in {index}, and it has none; fetch the file again.")
        names = sorted(set(shards.values()))
        for name in names:
            inside = Path(name).name == name and name.isprintable() and name.endswith(".safetensors")
            if not inside or not (folder / name).is_file():
                raise CheckpointError(
                    f"Expected shards inside {folder}, and {index.name} names {short(repr(name))}, which is none; fetch it."
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
    return {path: read_header(path) for path in files}


def read_header(path: Path) -> Header:
    """Name → dtype and shape of every tensor; safetensors refuses a file that is not as long as its header says."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except (SafetensorError, OSError) as error:
        why = reason(error).removeprefix("SafetensorError: Error while deserializing header: ")
        raise CheckpointError(f"{short(path)} is not a whole safetensors file ({why}); fetch it again.") from None


def fingerprint(files: Iterable[Path]) -> str:
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
