"""Attention and column sums written as the formula says: the oracle of every other backend.

Holds [batch, head, query, key]. Nothing is in place and gradients flow, so it also serves where they are needed.
"""

import torch
from torch import Tensor

from sinkscope.attention.inputs import Inputs, Result, masked_below


def reference(call: Inputs) -> Result:
    """Softmax attention, its output, and what every key received."""
    dtype = call.work_dtype
    q = call.q.to(dtype)
    k = call.k.to(dtype).repeat_interleave(call.share, dim=1)
    v = call.v.to(dtype).repeat_interleave(call.share, dim=1)
    scores = q @ k.transpose(2, 3) * call.scale  # [batch, head, query, key]
    allowed = torch.ones(call.queries, call.keys, dtype=torch.bool, device=q.device)
    if call.block is not None:
        positions = torch.arange(call.queries, device=q.device)[:, None] + call.offset
        allowed = torch.arange(call.keys, device=q.device) // call.block <= positions // call.block
    if call.mask is not None and call.mask.dtype == torch.bool:
        allowed = allowed & call.mask
    elif call.mask is not None:
        allowed = allowed & (call.mask > masked_below(call.mask.dtype))
        scores = scores + call.mask.to(dtype)
    kept = allowed if call.drop_keys is None else allowed & ~dropped_pairs(call)

    one_hot = call.one_hot()[:, None]  # [batch | 1, 1, group, query]
    probabilities = softmax_over(scores, kept)
    clean = one_hot @ softmax_over(scores, allowed) if call.clean and call.drop_keys is not None else None
    return Result((probabilities @ v).to(call.q.dtype), one_hot @ probabilities, clean)


def dropped_pairs(call: Inputs) -> Tensor:
    """Which pairs drop_keys bars: [batch | 1, head | 1, query | 1, key]."""
    assert call.drop_keys is not None
    dropped = call.drop_keys[:, :, None, :]
    if call.keep_self:
        queries = torch.arange(call.queries, device=dropped.device)[:, None] + call.offset
        dropped = dropped & (queries != torch.arange(call.keys, device=dropped.device))
    return dropped


def softmax_over(scores: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over the allowed keys; a query that has none attends to nothing (zeros)."""
    probabilities = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return probabilities.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
