"""Memory of a checkpoint, looked at before anything is loaded; and weights checked without a copy of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from sinkscope.errors import CheckpointError
from sinkscope.models.checkpoint import read_header

GB = 1e9
STORED = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}  # bytes a number
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def is_finite(weights: Tensor) -> bool:
    """Whether no number is NaN or infinite: least and largest carry either, and need no memory (isfinite: 3 copies)."""
    if weights.numel() == 0 or not weights.is_floating_point():
        return True
    least, largest = torch.aminmax(unpacked(weights))
    return bool(torch.isfinite(least)) and bool(torch.isfinite(largest))


def unpacked(weights: Tensor) -> Tensor:
    """The numbers that a tensor of torchao's stands for; any other tensor as it is."""
    plain: Tensor = weights.detach()
    return plain if type(plain) in (Tensor, nn.Parameter) or not plain.is_floating_point() else plain.dequantize()


def refuse_unless_fits(asked: str, files: Sequence[Path], dtype: torch.dtype | str, on_cpu: bool) -> None:
    """Refuse weights that would be turned into more bytes than this machine has left.

    Weights that keep their dtype are mapped from their files and may be larger than what is free; those that are
    converted are copied into memory.
    """
    if not on_cpu or isinstance(dtype, str):
        return
    numbers = _numbers(files)
    stored = max(numbers, key=lambda kind: numbers[kind], default="")
    converted = sum(count for kind, count in numbers.items() if NAMES.get(kind) != str(dtype).removeprefix("torch."))
    needed = converted * dtype.itemsize
    free = available()
    if free is not None and needed > free:
        kept = sum(count * STORED.get(kind, 8) for kind, count in numbers.items())
        raise CheckpointError(
            f"{asked} takes {needed / GB:.1f} GB in {str(dtype).removeprefix('torch.')}, and {free / GB:.1f} GB of memory "
            f"are available; load it as it is stored, {kept / GB:.1f} GB: dtype={NAMES.get(stored, 'bfloat16')}."
        )


def available() -> int | None:
    """Bytes of memory that this process could get: the machine's, or less where its group is limited; None if unknown."""
    found: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = [
            line.split()[1]
            for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
            if line[:5] == "file "
        ]
        if limit != "max":
            found.append(int(limit) - int(used) + sum(map(int, cached)))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def _numbers(files: Sequence[Path]) -> dict[str, int]:
    """How many numbers of each stored kind, from the headers alone."""
    found: dict[str, int] = {}
    for path in files:
        for name, entry in read_header(path).items():
            if name != "__metadata__" and entry["dtype"] in STORED:
                start, end = entry["data_offsets"]
                found[entry["dtype"]] = found.get(entry["dtype"], 0) + (end - start) // STORED[entry["dtype"]]
    return found
