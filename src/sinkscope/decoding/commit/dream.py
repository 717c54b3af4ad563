"""Dream: a share of the masks that grows as time runs from 1 to epsilon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Block, Picks
from sinkscope.decoding.commit.ranking import drawn_by_confidence, most_confident
from sinkscope.decoding.commit.rule import Rule, register

if TYPE_CHECKING:
    from sinkscope.decoding.diffusion import Denoiser


@register("schedule")
class Schedule(Rule):
    """The most confident (or drawn by their confidence), as many as the schedule resolves at this time."""

    def __init__(self, run: Denoiser, block: Block) -> None:
        super().__init__(run, block)
        assert self.settings.steps is not None
        self.steps = self.settings.steps // self.settings.blocks
        self.times = torch.linspace(1, self.settings.epsilon, self.steps + 1)

    def unfinished(self) -> bool:
        return self.step < self.steps

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        count = dream_count(self.open().sum(1).cpu(), self.times, self.step)
        ranked = confidence.to(torch.float32)
        if self.settings.algorithm_temperature:
            drawn = drawn_by_confidence(ranked, count, self.settings.algorithm_temperature, self.run.noise)
            return Picks(drawn)
        return Picks(most_confident(ranked, [count] * len(ranked), self.run.padding))


@register("origin")
class Origin(Schedule):
    """Each mask by itself with the probability of this time; which ones is drawn before the tokens are."""

    def wanted(self) -> Tensor:
        wanted = self.open()
        where = wanted.flatten().nonzero().squeeze(-1)
        drawn = self.run.noise.uniform(where).to(wanted.device)
        last = self.step == self.steps - 1
        share = 1.0 if last else dream_share(self.times, self.step).to(wanted.device)
        return wanted.flatten().index_put((where,), drawn < share).view_as(wanted)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        return Picks(confidence > -torch.inf)


def dream_share(times: Tensor, step: int) -> Tensor:
    """Share of the masks that Dream resolves at this step, in float32: float64 gives other counts."""
    return 1 - times[step + 1] / times[step]


def dream_count(open_masks: Tensor, times: Tensor, step: int) -> int:
    """open_masks [batch] → how many positions a row commits; the last step takes all."""
    mean = open_masks.sum() / open_masks.shape[0]
    last = step == len(times) - 2
    return int(mean) if last else int(mean * dream_share(times, step))
