"""LLaDA and MMaDA: blocks from left to right, the same number of commits every step."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Literal

from torch import Tensor

from sinkscope.decoding.choose import CommitRule, register
from sinkscope.decoding.settings import Cache, Confidence, Decode, TokenId, sampler
from sinkscope.validation import Count, NonNegative, Truth


@sampler("llada")
class LLaDA(Decode):
    """Semi-autoregressive sampler of LLaDA: blocks from left to right, with the same number of tokens committed at
    every step.

    Args:
        steps: Number of denoising steps for the answer; the default is `length`.
    """

    own_rule: ClassVar[str] = "quota"
    caches: ClassVar[tuple[str | None, ...]] = (None, "prefix", "dual", "sparse")

    block: Count | None = None
    steps: Count | None = None
    temperature: NonNegative = 0.0
    _: KW_ONLY
    guidance: NonNegative = 0.0
    confidence: Confidence = "probability"
    forbid_eos: Truth = False
    late_eos: Truth = False
    eos_id: TokenId | None = None
    eot_id: TokenId | None = None
    cache: Cache = None
    shift: Truth | None = None

    def complete(self) -> None:
        if self.steps is None:
            self.put(steps=self.length)


@sampler("mmada")
class MMaDA(LLaDA):
    """Sampler of MMaDA: LLaDA's sampler with confidence in float64.

    `stop="eot"` is the fast variant of its authors.
    """

    confidence_dtype: ClassVar[Literal["model", "float32", "float64"]] = "float64"


@register("quota")
class Quota(CommitRule):
    """The most confident of each row, as many as its quota of this step."""

    def begin(self) -> None:
        self.steps: int = self.settings.steps // self.settings.blocks
        self.masks: list[int] = (self.open() & self.block.inside).sum(1).tolist()

    def is_unfinished(self) -> bool:
        return self.step < self.steps

    def counts(self, confidence: Tensor) -> list[int]:
        return [quota(count, self.steps, self.step) for count in self.masks]


def quota(masks: int, steps: int, step: int) -> int:
    """How many of a block's `masks` step number `step` commits: an even share, the remainder to the first steps."""
    return masks // steps + (step < masks % steps)
