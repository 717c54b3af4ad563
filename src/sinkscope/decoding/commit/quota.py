"""LLaDA and MMaDA: the masks of a block, shared evenly over its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from sinkscope.decoding.canvas import Block, Picks
from sinkscope.decoding.commit.ranking import most_confident
from sinkscope.decoding.commit.rule import Rule, register

if TYPE_CHECKING:
    from sinkscope.decoding.diffusion import Denoiser


@register("quota")
class Quota(Rule):
    """The most confident of each row, as many as its quota of this step."""

    def __init__(self, run: Denoiser, block: Block) -> None:
        super().__init__(run, block)
        assert self.settings.steps is not None
        self.steps = self.settings.steps // self.settings.blocks
        self.masks: list[int] = (self.open() & block.inside).sum(1).tolist()

    def unfinished(self) -> bool:
        return self.step < self.steps

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        counts = [quota(count, self.steps, self.step) for count in self.masks]
        return Picks(most_confident(confidence, counts, self.run.padding))


def quota(masks: int, steps: int, step: int) -> int:
    """How many of a block's `masks` step number `step` commits: an even share, the remainder to the first steps."""
    return masks // steps + (step < masks % steps)
