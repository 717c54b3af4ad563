"""dllm's samplers: quotas that are rounded, or drawn, when a block begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from functools import partial
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.decoding.choose import CommitRule, register
from sinkscope.decoding.settings import Cache, Confidence, Decode, Layout, Stop, TokenId, TokenIds, sampler
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, NonNegative, Truth


@sampler("mdlm")
class MDLM(Decode):
    """Masked diffusion sampler of the dllm library: blocks from the end of each sequence's own prompt, with quotas
    rounded half to even.

    Args:
        block: Number of tokens per block; the default is `length`.
        steps: Number of denoising steps; the default is `length`.
        stochastic: Whether each step's number of tokens is sampled rather than rounded.
    """

    own_rule: ClassVar[str] = "rounded"
    layout: ClassVar[Layout] = "rows"
    caches: ClassVar[tuple[str | None, ...]] = (None, "prefix", "dual")

    block: Count | None = None
    steps: Count | None = None
    confidence: Confidence = "probability"
    _: KW_ONLY
    stochastic: Truth = False
    guidance: NonNegative = 0.0
    guidance_keep: TokenIds = ()
    suppress: TokenIds = ()
    begin_suppress: TokenIds = ()
    shift: Truth | None = None

    @property
    def steps_in_a_block(self) -> int:
        return ceil((self.steps or self.length) / self.blocks)

    @property
    def most_steps(self) -> int:
        return self.blocks * self.steps_in_a_block

    def complete(self) -> None:
        self.put(block=self.length if self.block is None else self.block)
        self.put(steps=self.length if self.steps is None else self.steps)

    def check(self) -> None:
        super().check()
        if self.guidance_keep and not self.guidance:
            raise DecodeError("guidance_keep has no effect without guidance; give guidance above 0, or leave it out.")


@sampler("bd3lm")
class BD3LM(MDLM):
    """Block diffusion sampler of the dllm library: prompts padded at the left to whole blocks, block-causal attention,
    exact cache.

    Args:
        steps_per_block: Number of denoising steps per block; the default divides `steps` among the blocks.
        pad_id: Token id of padding; the default is the model's.
    """

    layout: ClassVar[Layout] = "left"
    block_causal: ClassVar[bool] = True
    draws_by_block: ClassVar[bool] = True
    caches: ClassVar[tuple[str | None, ...]] = (None, "exact")

    steps_per_block: Count | None = None
    pad_id: TokenId | None = None
    cache: Cache = "exact"
    stop: Stop = "row_eos"

    @property
    def steps_in_a_block(self) -> int:
        return self.steps_per_block or super().steps_in_a_block


@register("rounded")
class Rounded(CommitRule):
    """dllm: the most confident, by quotas rounded (or drawn) when the block begins; steps without a commit are left out."""

    def begin(self) -> None:
        settings, steps = self.settings, self.settings.steps_in_a_block
        masks = (self.open() & self.block.inside).sum(1).tolist()
        draw = self.run.noise.binomial if settings.stochastic else rounded
        self.quotas = [even_quotas(count, steps, partial(draw, row)) for row, count in enumerate(masks)]

    def is_unfinished(self) -> bool:
        return self.step < max(map(len, self.quotas), default=0)

    def counts(self, confidence: Tensor) -> list[int]:
        return [quotas[self.step] if self.step < len(quotas) else 0 for quotas in self.quotas]


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
