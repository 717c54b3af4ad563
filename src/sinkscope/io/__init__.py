"""Files are written whole or not at all: to a temporary name beside them, down to the disk, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sinkscope.io.reading import reason as reason

PARTIAL = ".partial"  # how temporary names end; whoever opens a folder may remove what a killed process left


@contextmanager
def whole(path: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` when the block ends, and is gone when the block fails.

    durable: wait until it is on the disk, so that a loss of power cannot leave a name without its content.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if durable:
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write(path: Path, content: str | bytes, durable: bool = True) -> Path:
    """Text (as UTF-8) or bytes into a file; a reader sees the old file, the new one, or none."""
    with whole(path, durable) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
