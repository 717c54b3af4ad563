"""RND1: the positions of the highest entropy stay masked, by a schedule or within a bound on the entropy of a step."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.choose import ByEntropy
from sinkscope.decoding.commit.rule import CommitRule, most_confident, register


@register("entropy")
class Entropy(CommitRule):
    """After step s of n, ⌊masks · (n − 1 − s) / n⌋ are left; confidence is the negative entropy."""

    def begin(self) -> None:
        assert self.settings.steps is not None
        self.steps = self.settings.steps
        self.masks = self.open().sum(1)

    def unfinished(self) -> bool:
        return self.step < self.steps and super().unfinished()

    def wanted(self) -> Tensor:
        """A draw of the authors' code is over the whole canvas: so the random numbers fall as in theirs."""
        if self.settings.greedy or self.settings.temperature == 0 or self.settings.noise == "per_row":
            return self.open()
        wanted = self.run.canvas.real.clone()
        wanted[:, 0] = False  # no row predicts it
        return wanted

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        open_positions = self.open()
        ranked = (-confidence).masked_fill(~open_positions, -torch.inf)
        # In float32, as the authors' code rounds it.
        counts = (self.masks * ((self.steps - 1 - self.step) / self.steps)).long().tolist()
        return Picks(open_positions & ~most_confident(ranked, counts, self.run.padding))


@register("entropy_bounded")
class EntropyBounded(Entropy):
    """The likeliest tokens first, while the entropies of all but the largest add up to at most gamma; at last the rest."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        assert self.settings.gamma is not None and isinstance(self.run.chooser, ByEntropy)
        open_positions = self.open()
        if self.step == self.steps - 1:
            return Picks(open_positions)
        sure = torch.full_like(confidence, -torch.inf)
        sure[self.wanted()] = self.run.chooser.log_probability.to(sure)
        order = sure.masked_fill(~open_positions, -torch.inf).sort(dim=1, descending=True, stable=True).indices
        entropy = (-confidence).masked_fill(~open_positions, 0.0).gather(1, order)
        within = entropy.cumsum(1) - entropy.cummax(1).values <= self.settings.gamma
        within[:, 0] = True
        return Picks(torch.zeros_like(open_positions).scatter(1, order, within) & open_positions)
