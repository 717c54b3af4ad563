"""LLaDA2.0, SDAR and TraDo: a quota of the whole block per step, whatever part of the block is known already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Block, Picks
from sinkscope.decoding.commit.quota import quota
from sinkscope.decoding.commit.ranking import most_confident
from sinkscope.decoding.commit.rule import Rule, register

if TYPE_CHECKING:
    from sinkscope.decoding.diffusion import Denoiser


class BlockQuota(Rule):
    """The base of the three: how many, and whether the quota may reach known tokens."""

    def __init__(self, run: Denoiser, block: Block) -> None:
        super().__init__(run, block)
        settings = self.settings
        assert settings.steps is not None and settings.block is not None
        self.size = settings.block
        self.steps = min(settings.steps, max(settings.length // (settings.minimal_topk or 1), 1))
        self.overwrites = settings.overwrite == "reference"

    def unfinished(self) -> bool:
        return self.step < self.steps and super().unfinished()

    def open(self) -> Tensor:
        return super().open() & self.block.inside

    def wanted(self) -> Tensor:
        # A draw is over the whole block, known tokens included: so the random numbers fall as in the authors' code.
        if self.settings.temperature == 0 and not self.overwrites:
            return self.open()
        working = self.open().any(1, keepdim=True)  # a row that is finished draws nothing while it waits for others
        return self.block.inside & self.run.canvas.real & working

    @property
    def quota(self) -> int:
        return quota(self.size, self.steps, self.step)

    def best(self, confidence: Tensor) -> Picks:
        """The quota's most confident; known tokens count −∞, and are reached only where overwriting is asked for."""
        open_positions = self.open()
        ranked = confidence.masked_fill(~open_positions, -torch.inf)
        chosen = most_confident(ranked, [self.quota] * len(ranked), self.run.padding)
        if not self.overwrites:
            return Picks(chosen)
        start, stop = self.block.span
        beyond, ranked = torch.zeros(chosen.shape, dtype=torch.bool), ranked.cpu()
        for row in range(len(ranked)):  # as torch.topk over the block breaks ties among −∞, on a CPU
            beyond[row, start + ranked[row, start:stop].topk(self.quota).indices] = True
        beyond = beyond.to(chosen.device)
        return Picks(beyond & open_positions, edit=beyond & ~open_positions)


@register("static")
class Static(BlockQuota):
    """The most confident, as many as the quota."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        return self.best(confidence)


@register("dynamic")
class Dynamic(BlockQuota):
    """All above the threshold if that fills the quota, else the most confident."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        assert self.settings.threshold is not None
        sure = (confidence > self.settings.threshold) & self.open()
        best = self.best(confidence)
        enough = sure.sum(1, keepdim=True) >= self.quota
        edit = None if best.edit is None else best.edit & ~enough
        return Picks(torch.where(enough, sure, best.commit), edit)


@register("sequential")
class Sequential(BlockQuota):
    """The quota's positions from the first mask on."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        open_positions = self.open()
        if not self.overwrites:
            return Picks(open_positions & (open_positions.cumsum(1) <= self.quota))
        begun = open_positions.cumsum(1) > 0
        reached = begun & (begun.cumsum(1) <= self.quota) & self.block.inside
        return Picks(reached & open_positions, edit=reached & ~open_positions)
