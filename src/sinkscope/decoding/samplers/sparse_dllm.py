"""Sparse-dLLM's sampler for Dream: Dream's schedule in every block, whose first column is committed first."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.commit import most_confident, register
from sinkscope.decoding.samplers.dream import Schedule, dream_share


@register("sparse_dllm")
class BlockSchedule(Schedule):
    """The first step commits the block's first column, so that the block can run alone; the others a share of its masks."""

    block_only: ClassVar[bool] = True

    def is_unfinished(self) -> bool:
        return self.step < self.steps

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        if self.step == 0:
            first = torch.zeros_like(confidence, dtype=torch.bool)
            first[:, self.block.span[0]] = True
            return Picks(first & self.open())
        masks = self.open().sum(1).tolist()
        last = self.step == self.steps - 1
        share = 1.0 if last else float(dream_share(self.times, self.step))
        counts = [int(count * share) for count in masks]
        start, stop = self.block.span
        chosen = torch.zeros_like(self.block.inside)
        # Ties fall as of a topk over the block alone.
        chosen[:, start:stop] = most_confident(
            confidence[:, start:stop].float(), counts, torch.zeros(len(counts)).int()
        )
        return Picks(chosen)
