"""Sparse-dLLM (arXiv 2508.02558): keys outside the block are evicted once, at its second forward, by the block's mean query."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from sinkscope.attention.call import Call
from sinkscope.decoding.caches.evicting import Evicting
from sinkscope.decoding.caches.policy import CacheStep, Span
from sinkscope.decoding.canvas import Canvas
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, Share, settings

FULL = 2  # forwards over the whole canvas at the begin of a block


@settings(DecodeError)
class SparseDLLM(Evicting):
    """Two full forwards begin a block; then it runs alone, against the share of keys that its mean query points at.

    A column's score is the largest among its neighbours, `kernel` columns in all, the block left out of the row.
    """

    name: ClassVar[str] = "sparse_dllm"
    compared: ClassVar[bool] = True
    draws_computed: ClassVar[bool] = True

    keep: Share = 0.5
    kernel: Count = 3
    _: KW_ONLY

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise DecodeError(f"Expected an odd kernel, whose middle is a column, got {self.kernel}.")

    def due(self, canvas: Canvas, step: CacheStep) -> bool | Tensor:
        return step.index < FULL or super().due(canvas, step)

    def window(self, canvas: Canvas, step: CacheStep) -> Span:
        if (
            step.index < FULL
        ):  # a shifted model needs the row before the block, unless its first column is known by then
            masked = bool(canvas.masked_positions()[:, step.block[0]].any())
            step.memory["window"] = step.span(*step.block) if masked else step.block
        window: Span = step.memory["window"]
        return window

    def budget(self, outside: Tensor) -> Tensor:
        return (outside.double() * self.keep).floor().long()

    def watch(self, call: Call, canvas: Canvas, step: CacheStep) -> None:
        if call.queries == canvas.width:
            step.memory["query", call.layer] = call.q[:, :, slice(*step.block)].mean(2)

    def score(self, keys: Tensor, values: Tensor, received: Tensor | None, canvas: Canvas, step: CacheStep) -> Tensor:
        query = step.memory["query", step.layer]  # [batch, head, dim]
        of_head = keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)
        importance = (query[:, :, None] * of_head).sum(-1).mean(1)  # [batch, column]
        start, stop = self.window(canvas, step)
        outside = torch.cat([importance[:, :start], importance[:, stop:]], 1)
        pooled = max_pool1d(outside[:, None].float(), self.kernel, stride=1, padding=self.kernel // 2)[:, 0]
        ranked = rank_as_topk(pooled, int(pooled.shape[1] * self.keep))
        between = ranked.new_zeros(len(ranked), stop - start)
        scores = torch.cat([ranked[:, :start], between, ranked[:, start:]], 1)
        return scores[:, None].expand(keys.shape[:3])


def rank_as_topk(scores: Tensor, count: int) -> Tensor:
    """Ranks [batch, column] of scores: where equal ones stand on both sides of the limit, those rank higher that topk takes."""
    taken = torch.zeros_like(scores, dtype=torch.bool)
    if count:
        taken.scatter_(1, scores.topk(count, dim=1).indices, True)
    values = scores.unique(sorted=True)
    return 2.0 * torch.searchsorted(values, scores) + taken
