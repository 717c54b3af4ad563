"""Quotas: a block's masks shared over its steps, evenly (LLaDA, MMaDA), by the whole block, or rounded (dllm)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.commit.rule import CommitRule, most_confident, register


@register("quota")
class Quota(CommitRule):
    """The most confident of each row, as many as its quota of this step."""

    def begin(self) -> None:
        assert self.settings.steps is not None
        self.steps = self.settings.steps // self.settings.blocks
        self.masks: list[int] = (self.open() & self.block.inside).sum(1).tolist()

    def unfinished(self) -> bool:
        return self.step < self.steps

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        counts = [quota(count, self.steps, self.step) for count in self.masks]
        return Picks(most_confident(confidence, counts, self.run.padding))


def quota(masks: int, steps: int, step: int) -> int:
    """How many of a block's `masks` step number `step` commits: an even share, the remainder to the first steps."""
    return masks // steps + (step < masks % steps)


@register("static")
class Static(CommitRule):
    """LLaDA2.0, SDAR and TraDo: the most confident, a quota of the whole block per step, whatever is known already."""

    block_only = True

    def begin(self) -> None:
        settings = self.settings
        assert settings.steps is not None and settings.block is not None
        self.size = settings.block
        self.steps = min(settings.steps, max(settings.length // (settings.minimal_topk or 1), 1))
        self.overwrites = settings.overwrite == "reference"

    def unfinished(self) -> bool:
        return self.step < self.steps and super().unfinished()

    def wanted(self) -> Tensor:
        # A draw is over the whole block, known tokens included: so the random numbers fall as in the authors' code.
        if self.settings.temperature == 0 and not self.overwrites:
            return self.open()
        working = self.open().any(1, keepdim=True)  # a row that is finished draws nothing while it waits for others
        return self.block.inside & self.run.canvas.real & working

    @property
    def quota(self) -> int:
        return quota(self.size, self.steps, self.step)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        """Known tokens count −∞, and are reached only where overwriting is asked for."""
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


@register("dynamic")
class Dynamic(Static):
    """All above the threshold if that fills the quota, else the most confident."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        assert self.settings.threshold is not None
        sure = (confidence > self.settings.threshold) & self.open()
        best = super().pick(candidates, confidence)
        enough = sure.sum(1, keepdim=True) >= self.quota
        edit = None if best.edit is None else best.edit & ~enough
        return Picks(torch.where(enough, sure, best.commit), edit)


@register("sequential")
class Sequential(Static):
    """The quota's positions from the first mask on."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        open_positions = self.open()
        if not self.overwrites:
            return Picks(open_positions & (open_positions.cumsum(1) <= self.quota))
        begun = open_positions.cumsum(1) > 0
        reached = begun & (begun.cumsum(1) <= self.quota) & self.block.inside
        return Picks(reached & open_positions, edit=reached & ~open_positions)


@register("rounded")
class Rounded(CommitRule):
    """dllm: the most confident, by quotas rounded (or drawn) when the block begins; steps without a commit are left out."""

    def begin(self) -> None:
        settings = self.settings
        assert settings.steps is not None
        steps = settings.steps_per_block or ceil(settings.steps / settings.blocks)
        masks = (self.open() & self.block.inside).sum(1).tolist()
        draw = self.run.noise.binomial if settings.stochastic else rounded
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
