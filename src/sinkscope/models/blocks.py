"""Block-causal attention: a position sees its own block and all blocks before it, counted from column 0."""

from __future__ import annotations

import torch
from torch import Tensor


def block_mask(block: int, start: int, stop: int, real: Tensor | None, device: torch.device) -> Tensor | None:
    """Which keys 0 … stop each query start … stop may see, bool [batch | 1, 1, query, key]; None where all see all.

    real: bool [batch, position], False at padding. A padded query sees itself, so that no row is fully masked.
    """
    if start // block == (stop - 1) // block and real is None:
        return None
    queries, keys = torch.arange(start, stop, device=device), torch.arange(stop, device=device)
    visible = (keys // block <= (queries // block).unsqueeze(1))[None, None]
    if real is None:
        return visible
    return (visible & real[:, None, None, :stop]) | (queries.unsqueeze(1) == keys)


def counted(real: Tensor) -> Tensor:
    """Positions that count real tokens only, [batch, position]; 0 at padding."""
    return (real.to(torch.int64).cumsum(-1) - 1).masked_fill(~real.bool(), 0)
