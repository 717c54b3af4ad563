"""Random numbers that are a function of their place (SplitMix64): no state and no order, the same bits on every device."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from sinkscope.fields import LARGEST

PRIME = 1_000_003


def signed(number: int) -> int:
    """A number modulo 2^64 as int64 has it."""
    return (number + 2**63) % 2**64 - 2**63


GOLDEN = signed(0x9E3779B97F4A7C15)
FACTORS = ((30, signed(0xBF58476D1CE4E5B9)), (27, signed(0x94D049BB133111EB)))


def mix(numbers: Tensor) -> Tensor:
    """Scramble int64, whose products wrap; torch's shifts keep the sign, so they are masked."""
    for shift, factor in FACTORS:
        numbers = (numbers >> shift).bitwise_and_((1 << (64 - shift)) - 1).bitwise_xor_(numbers).mul_(factor)
    return (numbers >> 31).bitwise_and_((1 << 33) - 1).bitwise_xor_(numbers)


def uniform64(numbers: Tensor) -> Tensor:
    """The upper 53 bits as a number in [0, 1), float64."""
    return (numbers >> 11).bitwise_and_((1 << 53) - 1).to(torch.float64).mul_(2.0**-53)


def mixed(*parts: int) -> int:
    """A seed for torch's own generator out of several numbers."""
    return reduce(lambda seed, part: seed * PRIME + part, parts) % LARGEST


def key_of(*parts: int) -> int:
    """One number of several, mixed on the host."""
    key = torch.zeros((), dtype=torch.int64)
    for part in parts:
        key = mix(key + signed(part + GOLDEN))
    return int(key)
