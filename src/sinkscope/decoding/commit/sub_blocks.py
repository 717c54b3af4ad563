"""Fast-dLLM v2: a block is filled in sub-blocks from left to right, each by confidence, at least one token per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Block, Picks
from sinkscope.decoding.commit.rule import Rule, register
from sinkscope.decoding.exact import BlockForwards

if TYPE_CHECKING:
    from sinkscope.decoding.diffusion import Denoiser


@register("sub_blocks")
class SubBlocks(Rule):
    """A block's first token is the likeliest after the blocks before it; no forward of its own is needed for that."""

    def __init__(self, run: Denoiser, block: Block) -> None:
        super().__init__(run, block)
        forwards, first = run.forwards, block.span[0]
        if isinstance(forwards, BlockForwards) and forwards.last is not None:
            rows = self.open()[:, first].nonzero().flatten()
            if len(rows):
                logits = run.logits(forwards.last, rows, torch.ones_like(rows))
                run.canvas.tokens = run.canvas.tokens.clone()
                run.canvas.tokens[rows, first] = logits.argmax(-1)

    def open(self) -> Tensor:
        """Open positions of each row's first sub-block that has any."""
        opened = super().open() & self.block.inside
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
