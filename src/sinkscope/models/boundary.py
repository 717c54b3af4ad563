"""Files from elsewhere: read within bounds, and whatever is wrong with them is one printable sentence."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.errors import CheckpointError, SinkscopeError
from sinkscope.io.reading import MB, read_bytes, short

LARGEST_CONFIG = 8 * MB
LARGEST_INDEX = 64 * MB
LARGEST_TEXT = 200 * MB  # tokenizer files: the largest published are about 35 MB
LONGEST_NAME = 4096  # of a path on Linux
LONGEST_SENTENCE = 590
READ = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors", "*.gguf")  # what is opened in a folder


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
        raise CheckpointError(f"{shown(what)} cannot be used ({reason(error)}); fetch its files again.") from error


def reason(error: BaseException) -> str:
    """Why, in a few printable words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "values stand too deep inside each other"
    if isinstance(error, MemoryError):
        return "it would need more memory than there is"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return short(f"{type(error).__name__}: {' '.join(lines[:2])}".removesuffix(": ")).rstrip(".")


def shown(value: object) -> str:
    """A path, a name or a value, short enough for a sentence."""
    return short(str(value))


def checked_name(name: Any) -> str:
    """The name that a model was asked by, or one sentence."""
    try:
        asked = os.fspath(name)
    except TypeError:
        asked = None
    if not isinstance(asked, str) or not asked.strip() or "\0" in asked or len(asked) > LONGEST_NAME:
        came = f"{len(asked)} characters" if isinstance(asked, str) and len(asked) > LONGEST_NAME else shown(repr(name))
        raise CheckpointError(
            f"Expected a zoo name, a folder, a GGUF file or a Hub id as text, got {came}; name the model to load."
        )
    return asked


def refuse_odd_files(folder: Path) -> None:
    """Everything that is opened in a folder is a plain file that can be read: no pipe, device or loop of links."""
    found = [path for pattern in READ for path in folder.glob(pattern)]
    for path in (*found, *folder.glob("additional_chat_templates/*.jinja")):
        try:
            kept = path.stat()
        except OSError as error:
            raise CheckpointError(f"{shown(path)} cannot be read ({reason(error)}); put it there again.") from None
        if stat.S_ISDIR(kept.st_mode):
            continue
        if not stat.S_ISREG(kept.st_mode) or not os.access(path, os.R_OK):
            kind = "is not readable" if stat.S_ISREG(kept.st_mode) else "is a pipe, socket or device"
            raise CheckpointError(f"Expected a plain file, and {shown(path)} {kind}; put the file there again.")
        if path.suffix not in (".safetensors", ".gguf") and kept.st_size > LARGEST_TEXT:
            raise CheckpointError(
                f"Expected less than {LARGEST_TEXT // MB} MB in {shown(path)}, got {kept.st_size // MB} MB; "
                "is it another file?"
            )


def read_object(path: Path, largest: int) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        read = json.loads(read_bytes(path, largest, CheckpointError).decode("utf-8"))
    except (ValueError, RecursionError) as error:  # broken JSON, broken UTF-8, a number of 5,000 digits, depth
        raise CheckpointError(
            f"Expected JSON in {shown(path)}, and it cannot be read ({reason(error)}); fetch the file again."
        ) from None
    if not isinstance(read, dict):
        raise CheckpointError(f"Expected a JSON object in {shown(path)}, got a {type(read).__name__}; fetch it again.")
    return read
