"""Files from elsewhere: read within bounds, and whatever is wrong with them is one printable sentence."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.errors import CheckpointError, SinkscopeError
from sinkscope.io.reading import MB, reason, short

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
