"""The head of a GGUF file read once, so that no count in it is believed before the file is long enough for it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sinkscope.errors import CheckpointError
from sinkscope.models.boundary import reason, shown

# struct's letter for a plain value, by its type
LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
WIDTHS = {kind: struct.calcsize(f"<{letter}") for kind, letter in LETTERS.items()}
TEXT, LIST = 8, 9
MOST_KEYS, MOST_TENSORS, MOST_ITEMS, LONGEST = 10_000, 100_000, 1 << 22, 1 << 22
# Sizes that a model is built from, each no larger than the longest side of a tensor in the file.
SIDES = ("embedding_length", "feed_forward_length", "vocab_size", "attention.head_count", "attention.head_count_kv")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file: its shape in torch's order, the number of its packing, its place behind the head."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself, checked against its length; the data starts at the first multiple after `end`."""

    path: Path
    size: int
    values: dict[str, Any] = field(repr=False)
    tensors: tuple[StoredTensor, ...] = field(repr=False)
    end: int


def read_gguf(path: Path) -> Header:
    """The head of a file; one that is no GGUF, is cut short, or says more than it holds is refused."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            header = _head(path, _Reader(file, size))
        _check_sizes(header)
    except (OSError, ValueError, struct.error) as error:
        why = reason(error).removeprefix("ValueError: ")
        raise CheckpointError(f"{shown(path)} cannot be read as a GGUF model: {why}; fetch it again.") from None
    return header


class _Reader:
    """Little-endian values of a file, none from beyond its end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size, self.items = file, size, 0

    def whole(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def take(self, count: int, most: int = LONGEST) -> bytes:
        data = self.file.read(count) if 0 <= count <= most else b""
        if len(data) != count:
            raise ValueError("it is cut short, or gives a length beyond its end")
        return data

    def text(self) -> str:
        try:
            return self.take(self.whole(8)).decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError("it holds a text that is not UTF-8") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in LETTERS:
            return struct.unpack(f"<{LETTERS[kind]}", self.take(WIDTHS[kind]))[0]
        if kind == TEXT:
            return self.text()
        if kind != LIST or depth > 2:
            raise ValueError(f"it holds a value of the unknown type {kind}")
        inner, count = self.whole(4), self.whole(8)
        self.items += count
        if self.items > MOST_ITEMS:
            raise ValueError(f"it holds lists of more than {MOST_ITEMS} values")
        if inner in LETTERS:
            return list(struct.unpack(f"<{count}{LETTERS[inner]}", self.take(count * WIDTHS[inner], 8 * MOST_ITEMS)))
        return [self.value(inner, depth + 1) for _ in range(count)]


def _head(path: Path, reader: _Reader) -> Header:
    magic = reader.take(4)
    version = reader.whole(4)
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"expected the mark GGUF and version 2 or 3, got {magic!r} and {version}")
    tensors, keys = reader.whole(8), reader.whole(8)
    if not 0 < tensors <= MOST_TENSORS or keys > MOST_KEYS:
        raise ValueError(f"expected up to {MOST_TENSORS} tensors and {MOST_KEYS} keys, got {tensors} and {keys}")
    values: dict[str, Any] = {}
    for _ in range(keys):
        name = reader.text()
        if name in values:  # of two sizes one would be checked, and the other be built
            raise ValueError(f"it names {shown(name)} twice")
        values[name] = reader.value(reader.whole(4))
    entries = [_entry(reader) for _ in range(tensors)]
    if len({entry.name for entry in entries}) < tensors:
        raise ValueError("it names a tensor twice")
    return Header(path, reader.size, values, tuple(entries), reader.file.tell())


def _entry(reader: _Reader) -> StoredTensor:
    name, dimensions = reader.text(), reader.whole(4)
    if dimensions > 4:
        raise ValueError(f"it holds a tensor of {dimensions} dimensions")
    shape = [reader.whole(8) for _ in range(dimensions)]
    entry = StoredTensor(name, tuple(reversed(shape)), reader.whole(4), reader.whole(8))
    if entry.offset >= reader.size:
        raise ValueError("it is cut short before a tensor that it names")
    return entry


def _check_sizes(header: Header) -> None:
    """A default in the place of a missing size would be a model of billions, and a size may say anything."""
    tensors = len(header.tensors)
    longest = max((side for entry in header.tensors for side in entry.shape), default=0)
    # A list has one number per layer, and only some architectures take it.
    sizes = {name: value for name, value in header.values.items() if not isinstance(value, list)}
    named = {name.partition(".")[2] for name in sizes}
    if missing := sorted({"block_count", *SIDES[:2], SIDES[3]} - named):
        raise ValueError(f"it does not say its {missing[0]}")
    for name, value in sizes.items():
        size = name.partition(".")[2]
        if size in ("block_count", *SIDES) and type(value) is not int:
            raise ValueError(f"{shown(name)} is no whole number")
        if size == "block_count" and not 0 < value <= tensors:
            raise ValueError(f"it names {value} layers and holds {tensors} tensors")
        if size in SIDES and not 0 < value <= longest:
            raise ValueError(f"{shown(name)} is {value}, and no tensor is longer than {longest}")
