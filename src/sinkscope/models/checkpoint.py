"""Files from elsewhere, looked at before anything is loaded: read within bounds, and what is wrong with them is one sentence."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.errors import CheckpointError, SinkscopeError
from sinkscope.io.reading import MB, read_object, reason, short
from sinkscope.models.sizes import Header, checked_config

LARGEST_CONFIG = 8 * MB
LARGEST_INDEX = 64 * MB
LARGEST_TEXT = 200 * MB  # tokenizer files: the largest published are about 35 MB
LONGEST_NAME = 4096  # of a path on Linux
LONGEST_SENTENCE = 590
READ = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors", "*.gguf")  # what is opened in a folder
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
FIRST_BYTES = 1 << 16


@contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Turn whatever a library raises over a file into a CheckpointError: first line, printable, not too long."""
    try:
        yield
    except SinkscopeError as error:
        if (said := short(str(error), LONGEST_SENTENCE)) == str(error):
            raise
        raise type(error)(said) from None
    except BaseException as error:
        # A panic on the Rust side is no Exception, and means no more than one.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{short(what)} cannot be used ({reason(error)}); fetch its files again.") from error


def checked_name(name: Any) -> str:
    """The name that a model was asked by, or one sentence."""
    try:
        asked = os.fspath(name)
    except TypeError:
        asked = None
    if not isinstance(asked, str) or not asked.strip() or "\0" in asked or len(asked) > LONGEST_NAME:
        raise CheckpointError(
            f"Expected a zoo name, a folder, a GGUF file or a Hub id as text, got {short(repr(name))}; name the model to load."
        )
    return asked


def refuse_odd_files(folder: Path) -> None:
    """Everything that is opened in a folder is a plain file that can be read: no pipe, device or loop of links."""
    found = [path for pattern in READ for path in folder.glob(pattern)]
    for path in (*found, *folder.glob("additional_chat_templates/*.jinja")):
        try:
            kept = path.stat()
        except OSError as error:
            raise CheckpointError(f"{short(path)} cannot be read ({reason(error)}); put it there again.") from None
        if stat.S_ISDIR(kept.st_mode):
            continue
        if not stat.S_ISREG(kept.st_mode) or not os.access(path, os.R_OK):
            kind = "is not readable" if stat.S_ISREG(kept.st_mode) else "is a pipe, socket or device"
            raise CheckpointError(f"Expected a plain file, and {short(path)} {kind}; put the file there again.")
        if path.suffix not in (".safetensors", ".gguf") and kept.st_size > LARGEST_TEXT:
            raise CheckpointError(
                f"Expected less than {LARGEST_TEXT // MB} MB in {short(path)}, got {kept.st_size // MB} MB; "
                "is it another file?"
            )


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
