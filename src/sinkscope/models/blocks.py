"""Which keys a query sees: its own block and all blocks before it, or what WeDLM's order of reading gives it."""

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
    return without_padding(visible, real[:, :stop], start)


def reordered_mask(known: Tensor, real: Tensor | None) -> Tensor:
    """Known tokens first and masks last, causally in that order, told in the text's order: bool [batch, 1, query, key].

    A known token sees the known ones up to itself, a mask all known tokens and the masks up to itself. known: bool
    [batch, position].
    """
    columns = torch.arange(known.shape[1], device=known.device)
    before = columns <= columns.unsqueeze(1)
    query, key = known[:, None, :, None], known[:, None, None, :]
    visible = torch.where(key, ~query | before, ~query & before)
    return visible if real is None else without_padding(visible, real, 0)


def without_padding(visible: Tensor, real: Tensor, start: int) -> Tensor:
    """No padded key is seen, and a padded query sees what is real; real: bool [batch, key], queries begin at `start`."""
    queries = torch.arange(start, start + visible.shape[2], device=real.device)
    keys_real, columns = real[:, None, None], torch.arange(real.shape[1], device=real.device)
    instead = torch.where(keys_real.any(-1, keepdim=True), keys_real, queries.unsqueeze(1) == columns)
    return torch.where(real[:, None, start : start + visible.shape[2], None], visible & keys_real, instead)


def counted(real: Tensor) -> Tensor:
    """Positions that count real tokens only, [batch, position]; 0 at padding."""
    return (real.to(torch.int64).cumsum(-1) - 1).masked_fill(~real.bool(), 0)
