"""Nemotron: the first token of a block continues the text before it; the others are committed as they become sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.decoding.cache import BlockForwards
from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.commit.confident import above_threshold
from sinkscope.decoding.commit.rule import CommitRule, register

if TYPE_CHECKING:
    from sinkscope.decoding.diffusion import Denoiser


@register("continued")
class Continued(CommitRule):
    """Everything at or above the threshold, and at least the best; without a threshold the best alone."""

    block_only = True

    def begin(self) -> None:
        run, block = self.run, self.block
        if self.settings.mode == "diffusion":  # a draft of self-speculation brings its first token
            run.canvas.tokens = run.canvas.tokens.clone()
            if self.settings.causal_context:
                rows = (~run.done).nonzero().flatten()
                run.canvas.tokens[rows, block.span[0]] = next_token(run, rows)
            self._end_thinking(*block.span)
        self.begun = ~run.canvas.open() & block.inside  # written by no step of this block: told with its first

    def _end_thinking(self, first: int, last: int) -> None:
        most, marker = self.settings.max_thinking_tokens, self.settings.end_think_id
        if most is None or marker is None:
            return
        tokens = self.run.canvas.tokens
        for row, start in enumerate(self.run.canvas.answers):
            if last - start > most and not bool((tokens[row, start:first] == marker).any()):
                tokens[row, max(start + most, first)] = marker

    def unfinished(self) -> bool:
        if self.settings.stop == "batch_eos" and self.step and self._ends():
            return False
        return super().unfinished()

    def _ends(self) -> bool:
        """Whether in any row an end-of-text of this block has nothing masked before it."""
        first, last = self.block.span
        tokens = self.run.canvas.tokens[:, first:last]
        masked = (tokens == self.run.canvas.blank).cumsum(1) > 0
        return bool((self.run.ends(tokens) & ~masked).any())

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        # At a threshold that nothing can reach, only the best is left.
        chosen = above_threshold(confidence, 2.0 if self.settings.threshold is None else self.settings.threshold)
        return Picks(chosen | self.begun if self.step == 0 else chosen)


def next_token(run: Denoiser, rows: Tensor) -> Tensor:
    """What the causal head of the text in the cache writes next, [row]."""
    assert isinstance(run.forwards, BlockForwards) and run.forwards.last is not None
    logits = run.logits(run.forwards.last, rows, torch.zeros_like(rows))
    if run.settings.temperature == 0:
        return logits.argmax(-1)
    run.noise.frame(1)
    shares = (logits / run.settings.temperature).softmax(-1)
    return run.noise.draw(shares.cpu(), rows).to(logits.device)
