"""Fast-dLLM: whatever is confident enough, until the block is full; or one token per step."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.cache import BlockForwards
from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.commit.rule import CommitRule, most_confident, register


@register("threshold")
class AboveThreshold(CommitRule):
    """Everything at or above the threshold, and at least the best."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        assert self.settings.threshold is not None
        return Picks(above_threshold(confidence, self.settings.threshold))


@register("best")
class Best(CommitRule):
    """The most confident of each row."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        return Picks(most_confident(confidence, [1] * len(confidence), self.run.padding))


@register("factor")
class Factor(CommitRule):
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


@register("sub_blocks")
class SubBlocks(CommitRule):
    """Fast-dLLM v2: sub-blocks from left to right, each by confidence, at least one token per step.

    A block's first token is the likeliest after the blocks before it; no forward of its own is needed for that.
    """

    block_only = True

    def begin(self) -> None:
        run, forwards, first = self.run, self.run.forwards, self.block.span[0]
        if isinstance(forwards, BlockForwards) and forwards.last is not None:
            rows = self.open()[:, first].nonzero().flatten()
            if len(rows):
                logits = run.logits(forwards.last, rows, torch.ones_like(rows))
                run.canvas.tokens = run.canvas.tokens.clone()
                run.canvas.tokens[rows, first] = logits.argmax(-1)

    def open(self) -> Tensor:
        """Open positions of each row's first sub-block that has any."""
        opened = super().open()
        size = self.settings.sub_block or self.settings.block or 1
        columns = torch.arange(opened.shape[1], device=opened.device)
        first = torch.where(opened, columns, opened.shape[1]).amin(1, keepdim=True)
        start = self.block.span[0]
        return opened & ((columns - start) // size == (first - start) // size)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        assert self.settings.threshold is not None
        chosen = confidence > self.settings.threshold
        rows = self.open().any(1).nonzero().flatten()
        chosen[rows, confidence[rows].argmax(-1)] = True
        return Picks(chosen)
