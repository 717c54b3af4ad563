"""Fast-dLLM: whatever is confident enough, until the block is full; or one token per step."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.commit.ranking import most_confident
from sinkscope.decoding.commit.rule import Rule, register


@register("threshold")
class Threshold(Rule):
    """Everything at or above the threshold, and at least the best."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        assert self.settings.threshold is not None
        return Picks(above_threshold(confidence, self.settings.threshold))


@register("best")
class Best(Rule):
    """The most confident of each row."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        return Picks(most_confident(confidence, [1] * len(confidence), self.run.padding))


@register("factor")
class Factor(Rule):
    """As many as hold a bound that falls with their number."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        assert self.settings.factor is not None
        counts = factor_counts(confidence, self.settings.factor)
        return Picks(most_confident(confidence, counts, self.run.padding))


def above_threshold(confidence: Tensor, threshold: float) -> Tensor:
    """Everything at or above the threshold, and in every open row at least the best."""
    chosen = confidence >= threshold
    best = confidence.argmax(-1)
    rows = (confidence.max(-1).values > -torch.inf).nonzero().squeeze(-1)
    chosen[rows, best[rows]] = True
    return chosen


def factor_counts(confidence: Tensor, factor: float) -> list[int]:
    """Fast-dLLM's factor rule: rank r is accepted while its confidence is at least 1 − factor / (r + 1); rank 1 always.

    As in the authors' code, if the first rank that fails is the last candidate, it is taken too.
    """
    counts: list[int] = []
    for row in confidence:
        ordered = row[row > -torch.inf].sort(descending=True).values.tolist()
        accepted = min(1, len(ordered))
        while accepted < len(ordered) and ordered[accepted] >= 1 - factor / (accepted + 2):
            accepted += 1
        counts.append(len(ordered) if accepted == len(ordered) - 1 else accepted)
    return counts
