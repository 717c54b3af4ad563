"""The head of a GGUF file walked once, so that no count in it is believed before the file is long enough for it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from sinkscope.errors import CheckpointError
from sinkscope.models.boundary import reason, shown

WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a plain value, by its type
TEXT, LIST = 8, 9
MOST_KEYS, MOST_TENSORS, MOST_ITEMS, LONGEST = 10_000, 100_000, 1 << 22, 1 << 22
# Sizes that a model is built from, each no larger than the longest side of a tensor in the file.
SIDES = ("embedding_length", "feed_forward_length", "vocab_size", "attention.head_count", "attention.head_count_kv")


def check_gguf(path: Path) -> None:
    """Refuse a file that is no GGUF, is cut short, or says more than it holds."""
    try:
        with path.open("rb") as file:
            _walk(_Reader(file, path.stat().st_size))
    except (OSError, ValueError, struct.error) as error:
        why = reason(error).removeprefix("ValueError: ")
        raise CheckpointError(f"{shown(str(path))} cannot be read as a GGUF model: {why}; fetch it again.") from None


class _Reader:
    """Little-endian values of a file, none from beyond its end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size, self.items = file, size, 0

    def whole(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def take(self, count: int) -> bytes:
        data = self.file.read(count) if 0 <= count <= LONGEST else b""
        if len(data) != count:
            raise ValueError("it is cut short, or names a length that it has not")
        return data

    def text(self) -> str:
        return self.take(self.whole(8)).decode("utf-8", "replace")

    def skip(self, count: int) -> None:
        if self.file.tell() + count > self.size:
            raise ValueError("it is cut short, or names a length that it has not")
        self.file.seek(count, 1)

    def value(self, kind: int, depth: int = 0) -> int | None:
        """A whole number where it is one; everything else is only passed over."""
        if kind in WIDTHS:
            return self.whole(WIDTHS[kind])
        if kind == TEXT:
            self.skip(self.whole(8))
            return None
        if kind != LIST or depth > 2:
            raise ValueError(f"it holds a value of the unknown type {kind}")
        inner, count = self.whole(4), self.whole(8)
        self.items += count
        if self.items > MOST_ITEMS:
            raise ValueError(f"it holds lists of more than {MOST_ITEMS} values")
        if inner in WIDTHS:
            self.skip(count * WIDTHS[inner])
        else:
            for _ in range(count):
                self.value(inner, depth + 1)
        return None


def _walk(reader: _Reader) -> None:
    magic = reader.take(4)
    version = reader.whole(4)
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"expected the mark GGUF and version 2 or 3, got {magic!r} and {version}")
    tensors, keys = reader.whole(8), reader.whole(8)
    if not 0 < tensors <= MOST_TENSORS or keys > MOST_KEYS:
        raise ValueError(f"expected up to {MOST_TENSORS} tensors and {MOST_KEYS} keys, got {tensors} and {keys}")
    found: dict[str, int | None] = {}
    for _ in range(keys):
        name = reader.text()
        found[name] = reader.value(reader.whole(4))
    longest = 0
    for _ in range(tensors):
        reader.text()
        dimensions = reader.whole(4)
        if dimensions > 4:
            raise ValueError(f"it holds a tensor of {dimensions} dimensions")
        longest = max([longest, *(reader.whole(8) for _ in range(dimensions))])
        reader.skip(4)
        if reader.whole(8) >= reader.size:
            raise ValueError("it is cut short before a tensor that it names")
    named = {name.partition(".")[2] for name, value in found.items() if value is not None}
    if missing := sorted({"block_count", *SIDES[:2], SIDES[3]} - named):  # a default would be a model of billions
        raise ValueError(f"it does not say its {missing[0]}")
    for name, value in found.items():
        size = name.partition(".")[2]
        if value is not None and size == "block_count" and not 0 < value <= tensors:
            raise ValueError(f"it names {value} layers and holds {tensors} tensors")
        if value is not None and size in SIDES and not 0 < value <= longest:
            raise ValueError(f"{shown(name)} is {value}, and no tensor is longer than {longest}")
