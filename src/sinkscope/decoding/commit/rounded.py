"""dllm: quotas fixed at the start of a block, rounded (or drawn) from the share of masks that each step resolves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Block, Picks
from sinkscope.decoding.commit.ranking import most_confident
from sinkscope.decoding.commit.rule import Rule, register

if TYPE_CHECKING:
    from sinkscope.decoding.diffusion import Denoiser


@register("rounded")
class Rounded(Rule):
    """The most confident of each row, by quotas of its own; steps that would commit nothing are left out."""

    def __init__(self, run: Denoiser, block: Block) -> None:
        super().__init__(run, block)
        settings = self.settings
        assert settings.steps is not None
        steps = settings.steps_per_block or ceil(settings.steps / settings.blocks)
        masks = (self.open() & block.inside).sum(1).tolist()
        draw = run.noise.binomial if settings.stochastic else rounded
        self.quotas = [even_quotas(count, steps, partial(draw, row)) for row, count in enumerate(masks)]

    def unfinished(self) -> bool:
        return self.step < max(map(len, self.quotas), default=0)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        counts = [quotas[self.step] if self.step < len(quotas) else 0 for quotas in self.quotas]
        return Picks(most_confident(confidence, counts, self.run.padding))


def rounded(row: int, count: Tensor, share: Tensor) -> Tensor:
    """count · share, half to even; the same for every row."""
    return (count * share).round()


def even_quotas(masks: int, steps: int, taken: Callable[[Tensor, Tensor], Tensor]) -> list[int]:
    """Quotas of a block with `masks` masks: at each step `taken` of the n that are left and the share 1 − s/t.

    s/t is a float32 of the authors' linear schedule, written as they write it: float64 rounds to other quotas.
    """
    quotas: list[int] = []
    left = masks
    for step in range(steps, 0, -1):
        later, now = torch.tensor((step - 1) / steps), torch.tensor(step / steps)
        share = 1 - (1 - (1 - later)) / (1 - (1 - now))
        count = min(int(taken(torch.tensor(left, dtype=torch.float64), share.to(torch.float64))), left)
        left -= count
        if count:
            quotas.append(count)
        if not left:
            break
    return quotas
