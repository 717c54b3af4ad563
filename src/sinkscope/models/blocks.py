"""Block-causal attention: a position sees its own block and all blocks before it, counted from column 0."""

from __future__ import annotations

import torch
from torch import Tensor


def block_mask(block: int, start: int, stop: int, real: Tensor | None, device: torch.device) -> Tensor | None:
    """Which keys 0 … stop each query start … stop may see, bool [batch | 1, 1, query, key]; None where all see all.

    real: bool [batch, position], False at padding. A padded query sees all real keys (or itself, where there are none),
    so that no row is fully masked and a key that nobody sees is padding.
    """
    if start // block == (stop - 1) // block and real is None:
        return None
    queries, keys = torch.arange(start, stop, device=device), torch.arange(stop, device=device)
    visible = (keys // block <= (queries // block).unsqueeze(1))[None, None]
    if real is None:
        return visible
    keys_real = real[:, None, None, :stop]
    instead = torch.where(keys_real.any(-1, keepdim=True), keys_real, queries.unsqueeze(1) == keys)
    return torch.where(real[:, None, start:stop, None], visible & keys_real, instead)


def counted(real: Tensor) -> Tensor:
    """Positions that count real tokens only, [batch, position]; 0 at padding."""
    return (real.to(torch.int64).cumsum(-1) - 1).masked_fill(~real.bool(), 0)
