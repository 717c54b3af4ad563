"""LLaDA2.1: masks are filled as in 2.0, and known tokens of the block are replaced while the model is sure of others."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.commit.rule import CommitRule, most_confident, register


@register("edit")
class Edit(CommitRule):
    """Goes on until a forward that found no mask edits nothing, or max_post_steps such forwards were made."""

    block_only = True

    def begin(self) -> None:
        self.post_steps = torch.zeros_like(self.run.done, dtype=torch.int64)
        self.settled = self.run.done.clone()  # rows whose block is finished

    def wanted(self) -> Tensor:
        return self.block.inside & self.run.canvas.real & ~self.settled.unsqueeze(1)

    def unfinished(self) -> bool:
        assert self.settings.max_post_steps is not None
        self.post_steps += ~self.open().any(1)
        self.settled = self.settled | (self.post_steps > self.settings.max_post_steps)
        return not bool(self.settled.all())

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        settings, open_positions = self.settings, self.open()
        assert settings.threshold is not None and settings.editing_threshold is not None
        fewest = settings.num_to_transfer or 1
        sure = (confidence > settings.threshold) & open_positions
        ranked = confidence.masked_fill(~open_positions, -torch.inf)
        best = most_confident(ranked, [fewest] * len(ranked), self.run.padding)
        commit = torch.where(sure.sum(1, keepdim=True) >= fewest, sure, best)
        known = self.wanted() & ~open_positions & ~self.run.canvas.given
        edit = known & (candidates != self.run.canvas.tokens) & (confidence > settings.editing_threshold)
        self.settled = self.settled | ~(open_positions.any(1) | edit.any(1))
        return Picks(commit, edit)
