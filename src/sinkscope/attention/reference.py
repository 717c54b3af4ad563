"""Attention and column sums written as the formula says: the oracle of every other backend, and of explicit maps.

Holds [batch, head, query, key]. Nothing is in place and gradients flow, so it also serves where they are needed. `Inputs` is
what one call was asked for, in the form that every backend reads.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Result(NamedTuple):
    """What a backend gives back; column sums are in the working precision."""

    out: Tensor  # [batch, head, query, value dim], dtype of q
    received: Tensor  # [batch, head, group, key]
    clean: Tensor | None  # the same without drop_keys; None unless both were asked for


@dataclass(frozen=True)
class Inputs:
    """Tensors that fit together; made by `check` only."""

    q: Tensor  # [batch, head, query, dim]
    k: Tensor  # [batch, kv head, key, dim]
    v: Tensor  # [batch, kv head, key, value dim]
    mask: Tensor | None  # [batch | 1, head | 1, query | 1, key], bool (True = may attend) or additive
    block: int | None  # a query sees its own block of keys and those before it; 1: causal, None: sees all
    offset: int  # position of query 0 among the keys
    scale: float
    labels: Tensor  # [batch | 1, query], −1 = counts nowhere
    group_count: int
    drop_keys: Tensor | None  # [batch | 1, head | 1, key]
    keep_self: bool
    clean: bool
    cap: float | None = None  # scores are bent to stay within it: cap · tanh(score / cap); None: they are not
    hot: Tensor | None = None  # the labels as `one_hot` gives them, where all layers of a forward share them

    @property
    def batch(self) -> int:
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[1]

    @property
    def share(self) -> int:
        """How many query heads read one key head."""
        return self.heads // self.kv_heads

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    def sees_before(self, query: int) -> int:
        """How many of the keys come before the end of this query's block: it sees no later ones."""
        if self.block is None:
            return self.keys
        return max(0, min(self.keys, (self.offset + query + self.block) // self.block * self.block))

    @property
    def work_dtype(self) -> torch.dtype:
        """Half types are worked out in float32; float64 stays, for tests that want an oracle of that precision."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def empty_out(self) -> Tensor:
        """Room for the output, [batch, head, query, value dim], laid out in memory as q is."""
        batch, heads, queries, value_dim = self.batch, self.heads, self.queries, self.v.shape[3]
        if self.q.transpose(1, 2).is_contiguous():  # models make q as [batch, query, head, dim] and want out like that
            return self.q.new_empty(batch, queries, heads, value_dim).transpose(1, 2)
        return self.q.new_empty(batch, heads, queries, value_dim)

    def zero_received(self) -> Tensor:
        """Zeros of [batch, head, group, key] to sum into."""
        shape = (self.batch, self.heads, self.group_count, self.keys)
        return self.q.new_zeros(shape, dtype=self.work_dtype)

    def one_hot(self) -> Tensor:
        """Which queries each group counts, as 0 and 1: [batch | 1, group, query]."""
        if self.hot is not None and self.hot.dtype == self.work_dtype:
            return self.hot
        return one_hot(self.labels, self.group_count, self.work_dtype)


def one_hot(labels: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """labels [batch, query], −1 for none → [batch, group, query] of 0 and 1."""
    groups = torch.arange(count, device=labels.device)
    return (labels[:, None, :] == groups[None, :, None]).to(dtype)


def reference(call: Inputs) -> Result:
    """Softmax attention, its output, and what every key received."""
    one_hot = call.one_hot()[:, None]  # [batch | 1, 1, group, query]
    scores = masked_scores(call)
    attention = probabilities(call, scores)
    v = call.v.to(call.work_dtype).repeat_interleave(call.share, dim=1)
    clean = one_hot @ softmax(scores) if call.clean and call.drop_keys is not None else None
    return Result((attention @ v).to(call.q.dtype), one_hot @ attention, clean)


def masked_scores(call: Inputs) -> Tensor:
    """What goes into the softmax, [batch, head, query, key]: −∞ where mask or order bars a key; dropped keys stand there."""
    dtype = call.work_dtype
    scores = call.q.to(dtype) @ call.k.to(dtype).repeat_interleave(call.share, dim=1).mT * call.scale
    if call.cap is not None:
        scores = call.cap * torch.tanh(scores / call.cap)
    if call.block is not None:
        positions = torch.arange(call.queries, device=scores.device)[:, None] + call.offset
        later = torch.arange(call.keys, device=scores.device) // call.block > positions // call.block
        scores = scores.masked_fill(later, -torch.inf)
    if call.mask is None:
        return scores
    if call.mask.dtype == torch.bool:
        return scores.masked_fill(~call.mask, -torch.inf)
    barred = call.mask <= masked_below(call.mask.dtype)
    return (scores + call.mask.to(dtype)).masked_fill(barred, -torch.inf)


def probabilities(call: Inputs, scores: Tensor | None = None) -> Tensor:
    """The attention map without dropped keys, [batch, head, query, key]; scores: as `masked_scores` gives them."""
    return softmax(attended_scores(call, scores))


def attended_scores(call: Inputs, scores: Tensor | None = None) -> Tensor:
    """What goes into the softmax, dropped keys at −∞ too, [batch, head, query, key]; scores: as `masked_scores` gives them."""
    scores = masked_scores(call) if scores is None else scores
    if call.drop_keys is None:
        return scores
    dropped = call.drop_keys[:, :, None, :]
    if call.keep_self:
        queries = torch.arange(call.queries, device=dropped.device)[:, None] + call.offset
        dropped = dropped & (queries != torch.arange(call.keys, device=dropped.device))
    return scores.masked_fill(dropped, -torch.inf)


def softmax(scores: Tensor) -> Tensor:
    """Over the last axis; a query that has no key left attends to nothing (zeros)."""
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(dead, 0.0)


def masked_below(dtype: torch.dtype) -> float:
    """An additive mask at or below this bars the key: models write finfo.min where they mean −∞."""
    return torch.finfo(dtype).min / 2


def as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as something to add: 0 or the mask's own number where a key may be attended to, −∞ elsewhere."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return mask.to(dtype).masked_fill(mask <= masked_below(mask.dtype), -torch.inf)
