"""Dream: a share of the masks that grows as time runs from 1 to epsilon; and Open-dCoder's path planning on its schedule."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.commit.rule import CommitRule, most_confident, register


@register("schedule")
class Schedule(CommitRule):
    """The most confident (or drawn by their confidence), as many as the schedule resolves at this time."""

    def begin(self) -> None:
        assert self.settings.steps is not None
        self.steps = self.settings.steps // self.settings.blocks
        self.times = torch.linspace(1, self.settings.epsilon, self.steps + 1)

    def unfinished(self) -> bool:
        return self.step < self.steps

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        count = dream_count(self.open().sum(1).cpu(), self.times, self.step)
        ranked = confidence.to(torch.float32)
        if count and self.settings.algorithm_temperature:
            weights = (ranked / self.settings.algorithm_temperature).softmax(-1)
            drawn = self.run.noise.subset(weights, count).to(ranked.device)
            return Picks(torch.zeros_like(ranked, dtype=torch.bool).scatter(1, drawn, True))
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


@register("p2")
class PathPlanning(Schedule):
    """Open-dCoder: step i of n keeps the most confident (i + 1) / n of the answer, and masks the rest again."""

    def wanted(self) -> Tensor:
        """All generated positions, known or not."""
        return self.block.inside & self.run.canvas.real & ~self.run.done.unsqueeze(1)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        answer, open_positions = self.wanted(), self.open()
        kept = answer.clone()
        for row in range(len(answer)):
            places = answer[row].nonzero().flatten()
            count = int(len(places) * (1 - (self.step + 1) / self.steps))
            kept[row, places[confidence[row, places].argsort(stable=True)[:count]]] = False
        return Picks(commit=kept & open_positions, reopen=answer & ~kept & ~open_positions)
