"""Fast-dLLM and WeDLM: whatever is confident enough, until the block is full; or one token per step."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.choose import CommitRule, register
from sinkscope.decoding.samplers.llada import LLaDA
from sinkscope.decoding.settings import Cache, Choice, Decode, Layout, sampler
from sinkscope.validation import Count, NonNegative, Share

if TYPE_CHECKING:
    from sinkscope.decoding.forwards import Forwards
    from sinkscope.models.model import Model


@sampler("parallel")
class Parallel(LLaDA):
    """Parallel sampler of Fast-dLLM: commit every token whose confidence is high enough, and at least the most
    confident one.

    The commit rule is the factor rule if `factor` is given, the threshold rule if `threshold` is given, and LLaDA's
    quota otherwise.

    Args:
        threshold: Smallest confidence at which a token is committed; None for a quota per step.
        factor: Factor of Fast-dLLM's factor rule; replaces `threshold`.
        steps: Number of denoising steps of the quota; ignored with a threshold or a factor, as in the authors' code.
    """

    confidence_dtype: ClassVar[Literal["model", "float32", "float64"]] = "float64"

    threshold: Share | None = 0.9
    _: KW_ONLY
    factor: NonNegative | None = None
    steps: Count | None = None
    temperature: NonNegative = 0.0
    cache: Cache = None

    @property
    def commit_rule(self) -> str:
        own = "factor" if self.factor is not None else "quota" if self.threshold is None else "threshold"
        return self.commit or own

    def complete(self) -> None:
        if self.factor is not None:
            self.put(threshold=None)
        if self.commit_rule == "quota":
            self.put(steps=self.length if self.steps is None else self.steps)
        elif self.commit_rule in ("threshold", "factor"):
            self.put(steps=None)


@sampler("wedlm")
class WeDLM(Decode):
    """Sampler of WeDLM: decoded tokens come first with causal attention, mask tokens after them.

    The likeliest token is always chosen; the temperature changes only its confidence.

    Args:
        threshold: Smallest confidence at which a token is committed; 0 or None commits one token per step.
    """

    own_rule: ClassVar[str] = "best"
    layout: ClassVar[Layout] = "aligned"
    choice: ClassVar[Choice] = "likeliest"
    block_causal: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ("steps",)

    block: Count | None = 16
    threshold: Share | None = None
    _: KW_ONLY
    temperature: NonNegative = 0.0

    @property
    def commit_rule(self) -> str:
        return self.commit or ("threshold" if self.threshold else "best")

    def complete(self) -> None:
        self.put(threshold=self.threshold or None)

    def forwards(self, model: Model) -> Forwards:
        from sinkscope.decoding.forwards import ReorderedForwards

        assert self.block is not None
        return ReorderedForwards(model, self.block, False, model.shift)


@register("threshold", needs=["threshold"])
class AboveThreshold(CommitRule):
    """Everything at or above the threshold, and at least the best."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        return Picks(above_threshold(confidence, self.settings.threshold))


@register("best")
class Best(CommitRule):
    """The most confident of each row."""

    def counts(self, confidence: Tensor) -> list[int]:
        return [1] * len(confidence)


@register("factor", needs=["factor"])
class Factor(CommitRule):
    """As many as hold a bound that falls with their number."""

    def counts(self, confidence: Tensor) -> list[int]:
        return factor_counts(confidence, self.settings.factor)


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
