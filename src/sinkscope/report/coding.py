"""Arrays as compact bytes: what the page's `decode.js` undoes, step for step.

Floats are split into byte planes (all first bytes, then all second ones): exponents compress well, mantissas do not,
and apart they do not spoil each other. Codes that change slowly are kept as differences from the step before.
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
SPAN = 12.0  # octaves below the largest value that quantised scores resolve; anything smaller is 0


@dataclass
class Blob:
    """Named arrays packed one behind the other; `index` tells the page what lies where."""

    parts: list[bytes] = field(default_factory=list)
    index: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, array: Array, coding: str) -> None:
        """Pack an array; coding: "planes" (bytes split) or "steps" (differences along the next to last axis)."""
        packed = planes(array) if coding == "planes" else differences(array)
        self.index[name] = {
            "type": array.dtype.str[1:],
            "shape": list(array.shape),
            "coding": coding,
            "offset": sum(map(len, self.parts)),
            "bytes": len(packed),
        }
        self.parts.append(packed)

    def text(self) -> str:
        """All parts as one gzip stream, which browsers unpack themselves, in text for a page."""
        return base64.b64encode(gzip.compress(b"".join(self.parts), 6, mtime=0)).decode("ascii")


def planes(array: Array) -> bytes:
    """All first bytes of the (little-endian) values, then all second ones, and so on."""
    plain = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return plain.view(np.uint8).reshape(-1, array.dtype.itemsize).T.tobytes()


def differences(array: Array) -> bytes:
    """Each step minus the one before, modulo the type's size, along the next to last axis; then byte planes."""
    change = array.copy()
    change[..., 1:, :] -= array[..., :-1, :]
    return planes(change)


def quantise(values: Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Codes and the table that says what they mean: 0, then even steps of the logarithm up to the largest value, 3.3 % apart."""
    top = float(values.max()) if values.size else 0.0
    table = np.zeros(256, dtype=np.float32)
    if top <= 0:
        return np.zeros(values.shape, dtype=np.uint8), table
    table[1:] = top * 2.0 ** (SPAN * (np.arange(255) / 254 - 1))
    with np.errstate(divide="ignore"):
        code = np.rint((np.log2(values / top) / SPAN + 1) * 254) + 1
    return np.clip(code, 0, 255).astype(np.uint8), table
