"""Tensors of a GGUF file read and unpacked into float32, row by row as llama.cpp packed them.

The packings of SmolLM2 are unpacked here, three times as fast as by the package gguf, which unpacks all others and is
the slow twin in the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import torch
from torch import Tensor

from sinkscope.models.boundary import shown
from sinkscope.models.gguf_header import Entry, Header

F32, F16, Q4_1, Q8_0, BF16 = 0, 1, 3, 8, 30  # numbers of packings
PLAIN = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}


def packed_rows(header: Header) -> Iterator[tuple[Entry, Tensor]]:
    """Every tensor as it is stored: uint8 [row, byte]. Nothing is read of a file that is too short for all of them."""
    align = header.values.get("general.alignment", 32)
    start = -(-header.end // align) * align
    widths = [_row_bytes(entry) for entry in header.tensors]
    lengths = [prod(entry.shape[:-1]) * width for entry, width in zip(header.tensors, widths, strict=True)]
    ends = [start + entry.offset + length for entry, length in zip(header.tensors, lengths, strict=True)]
    if max(ends) > header.size or sum(lengths) > header.size:  # tensors over each other would grow as they are unpacked
        raise ValueError("it is cut short before the end of a tensor that it names")
    with header.path.open("rb") as file:
        for entry, width, length in zip(header.tensors, widths, lengths, strict=True):
            file.seek(start + entry.offset)
            yield entry, torch.from_numpy(np.fromfile(file, np.uint8, length).reshape(-1, width))


def _row_bytes(entry: Entry) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    values, width = GGML_QUANT_SIZES[GGMLQuantizationType(entry.kind)]
    if not entry.shape or entry.shape[-1] % values or not prod(entry.shape):
        raise ValueError(f"{shown(entry.name)} has the shape {list(entry.shape)}, which cannot be packed as it says")
    return entry.shape[-1] // values * int(width)


def unpacked(rows: Tensor, kind: int) -> Tensor:
    """uint8 [row, byte] → float32 [row, column]."""
    if kind in PLAIN:
        return rows.view(PLAIN[kind]).float()
    if kind == Q8_0:  # 32 values per block: a half-precision scale, and a signed byte per value
        blocks = rows.reshape(-1, 34)
        return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0)).view(len(rows), -1)
    if (
        kind == Q4_1
    ):  # 32 values per block: scale, least value, and two values per byte, the first 16 in the lower halves
        blocks = rows.reshape(-1, 20)
        halves = torch.stack((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), dim=1).view(-1, 32)
        return halves.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2)).view(len(rows), -1)
    from gguf import GGMLQuantizationType, dequantize

    return torch.from_numpy(dequantize(rows.numpy(), GGMLQuantizationType(kind)))


def _half(blocks: Tensor, place: int) -> Tensor:
    return blocks[:, place : place + 2].view(torch.float16).float()
