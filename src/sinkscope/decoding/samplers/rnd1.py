"""RND1: the positions of the highest entropy stay masked, by a schedule or within a bound on the entropy of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.choose import ByEntropy, CommitRule, most_confident, register
from sinkscope.decoding.settings import Choice, Decode, Layout, TokenIds, sampler
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, NonNegative, Share, Truth


@sampler("rnd1")
class RND1(Decode):
    """Sampler of RND1: positions of high entropy are decoded last.

    With an `eos_id` the last column is reserved: it holds padding, or end-of-text with `eos_at_end`.

    Args:
        total_length: Number of columns of the canvas, prompt included; the default makes room for `length`.
        length: Number of new tokens; needed if `total_length` is not given.
        greedy: True to take the likeliest token at any temperature; False to sample.
        gamma: Sum of entropies, in nats, that the tokens of one step may have apart from the largest; None commits by a
            schedule over the steps.
        suffix: Token ids after the mask tokens.
        infill_length: Number of mask tokens; the default fills the canvas.
        eos_at_end: Whether the reserved last column holds end-of-text rather than padding.
    """

    own_rule: ClassVar[str] = "entropy"
    layout: ClassVar[Layout] = "total"
    choice: ClassVar[Choice] = "entropy"
    caches: ClassVar[tuple[str | None, ...]] = (None, "prefix", "dual")
    unused: ClassVar[tuple[str, ...]] = ("block",)

    total_length: Count | None = None
    _: KW_ONLY
    length: Count = 0
    steps: Count | None = 256
    temperature: NonNegative = 1.0
    greedy: Truth = True
    top_k: Count | None = None
    top_p: Share | None = None
    gamma: NonNegative | None = None
    suffix: TokenIds = ()
    infill_length: Count | None = None
    eos_at_end: Truth = False

    @property
    def commit_rule(self) -> str:
        return self.commit or ("entropy" if self.gamma is None else "entropy_bounded")

    def complete(self) -> None:
        if not (self.length or self.total_length):
            raise DecodeError("Expected length or total_length, got neither; give one.")
        self.put(length=self.length or self.total_length, block=None)

    def fit(self, length: int, words: Mapping[str, Any]) -> dict[str, Any]:
        """Use as many steps as new tokens; a length that is asked for replaces `total_length`.

        Args:
            length: Number of tokens to generate.
            words: Settings that were given and must be kept.
        """
        return {"length": length, **({"total_length": None, "steps": length, **words} if "length" in words else {})}


@register("entropy")
class Entropy(CommitRule):
    """After step s of n, ⌊masks · (n − 1 − s) / n⌋ are left; confidence is the negative entropy."""

    def begin(self) -> None:
        self.steps: int = self.settings.steps
        self.masks = self.open().sum(1)

    def is_unfinished(self) -> bool:
        return self.step < self.steps and super().is_unfinished()

    def candidate_positions(self) -> Tensor:
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


@register("entropy_bounded", needs=["gamma"])
class EntropyBounded(Entropy):
    """The likeliest tokens first, while the entropies of all but the largest add up to at most gamma; at last the rest."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        assert isinstance(self.run.chooser, ByEntropy)
        open_positions = self.open()
        if self.step == self.steps - 1:
            return Picks(open_positions)
        sure = torch.full_like(confidence, -torch.inf)
        sure[self.candidate_positions()] = self.run.chooser.log_probability.to(sure)
        order = sure.masked_fill(~open_positions, -torch.inf).sort(dim=1, descending=True, stable=True).indices
        entropy = (-confidence).masked_fill(~open_positions, 0.0).gather(1, order)
        within = entropy.cumsum(1) - entropy.cummax(1).values <= self.settings.gamma
        within[:, 0] = True
        return Picks(torch.zeros_like(open_positions).scatter(1, order, within) & open_positions)
