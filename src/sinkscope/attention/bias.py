"""What keeps keys from queries beside their order: masks and dropped keys, sorted once a call, put into one tile at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention.inputs import Inputs, masked_below

# A mask is compared with its first row in pieces of so many rows, so that no copy is as large as the mask.
PIECE = 128


@dataclass(frozen=True)
class AttentionBias:
    """What is added to the scores: a part that holds for all rows alike, and a part that differs from row to row."""

    all_rows: Tensor | None  # [batch | 1, head | 1, 1, key], additive
    row_by_row: Tensor | None  # [batch | 1, head | 1, query, key], bool (True = may attend) or additive
    drop: Tensor | None  # [batch | 1, head | 1, 1, key], additive; apart only where scores without it are needed
    first_kept: int  # a row that sees more keys than this, counted from key 0, has something to attend to

    def of(self, batch: slice | int, heads: slice | int) -> AttentionBias:
        """The part of some heads, or of one."""
        all_rows, row_by_row, drop = (part(one, batch, heads) for one in (self.all_rows, self.row_by_row, self.drop))
        return AttentionBias(all_rows, row_by_row, drop, self.first_kept)


def part(tensor: Tensor | None, batch: slice | int, heads: slice | int) -> Tensor | None:
    """Some heads of a tensor [batch | 1, head | 1, …] that may hold one for all."""
    if tensor is None:
        return None
    shared: slice | int = 0 if isinstance(batch, int) else slice(None)
    return tensor[shared if tensor.shape[0] == 1 else batch, shared if tensor.shape[1] == 1 else heads]


def attention_bias(call: Inputs) -> AttentionBias:
    """Sort mask and drop_keys into what holds for all rows and what does not."""
    mask = None if call.mask is None else same_rows_once(call.mask)
    drop = None if call.drop_keys is None else as_bias(~call.drop_keys[:, :, None], call.work_dtype)
    all_rows = as_bias(mask, call.work_dtype) if mask is not None and mask.shape[2] == 1 else None
    row_by_row = mask if mask is not None and mask.shape[2] > 1 else None
    if drop is not None and not call.clean and not call.keep_self:
        all_rows, drop = drop if all_rows is None else all_rows + drop, None
    return AttentionBias(all_rows, row_by_row, drop, first_kept(call, all_rows, row_by_row, drop))


def first_kept(call: Inputs, all_rows: Tensor | None, row_by_row: Tensor | None, drop: Tensor | None) -> int:
    """The first key that no head bars for all rows; the number of keys where some head bars all, or rows differ."""
    fixed = [bias for bias in (all_rows, drop) if bias is not None]
    if row_by_row is not None:
        return call.keys
    if not fixed:
        return 0
    kept = sum(fixed[1:], fixed[0]) != -torch.inf  # [batch | 1, head | 1, 1, key]
    first = torch.where(kept.any(-1), kept.to(torch.uint8).argmax(-1), call.keys)
    return int(first.max())


def same_rows_once(mask: Tensor) -> Tensor:
    """A padding mask written out for every query says the same thing in each row: one row of it will do."""
    if mask.shape[2] == 1 or mask.stride(2) == 0:
        return mask[:, :, :1]
    first = mask[:, :, :1]
    for piece in mask.split(PIECE, dim=2):
        if not torch.equal(piece, first.expand_as(piece)):
            return mask
    return first


def as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as something to add: 0 or the mask's own number where a key may be attended to, −∞ elsewhere."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return mask.to(dtype).masked_fill(mask <= masked_below(mask.dtype), -torch.inf)


def add_bias(scores: Tensor, bias: AttentionBias, start: int, stop: int) -> None:
    """Put the mask into a tile of scores [..., row, key], in place."""
    visible = scores.shape[-1]
    if bias.all_rows is not None:
        scores.add_(bias.all_rows[..., :visible])
    if bias.row_by_row is not None:
        tile = bias.row_by_row[..., start:stop, :visible]
        if tile.dtype == torch.bool:
            scores.masked_fill_(~tile, -torch.inf)
        else:
            scores.add_(as_bias(tile, scores.dtype))


def drop_from(scores: Tensor, drop: Tensor, keep_self_at: int | None) -> None:
    """Take dropped keys out of a tile; with keep_self_at, the position of its first row, a row keeps its own key."""
    if keep_self_at is None:
        scores.add_(drop)
        return
    own = scores.diagonal(keep_self_at, -2, -1)
    kept = own.clone()
    scores.add_(drop)
    own.copy_(kept)
