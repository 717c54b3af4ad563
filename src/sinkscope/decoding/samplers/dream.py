"""Dream: a share of the masks that grows as time runs from 1 to epsilon; and Open-dCoder's path planning on its schedule."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.choose import CommitRule, most_confident, register
from sinkscope.decoding.settings import Choice, Confidence, Decode, sampler
from sinkscope.validation import Count, NonNegative, Share, Truth

# Confidence and commit rule of each algorithm.
ALGORITHMS: dict[str, tuple[Confidence, str]] = {
    "origin": ("probability", "origin"),
    "maskgit_plus": ("probability", "schedule"),
    "topk_margin": ("margin", "schedule"),
    "entropy": ("entropy", "schedule"),
    "p2": ("probability", "p2"),
}


@sampler("dream")
class Dream(Decode):
    """Sampler of Dream; the defaults are those of its authors' code, `top_k=50` included.

    Args:
        steps: Number of denoising steps for the answer; the default is `length`.
        algorithm: Order in which tokens are committed: "origin" at random times, "maskgit_plus" by probability,
            "topk_margin" by lead over the second token, "entropy" by entropy, and "p2" (Open-dCoder's) by probability,
            masking the least confident generated tokens again at every step.
        algorithm_temperature: Temperature of a random order by confidence; None or 0 commits the most confident tokens.
        epsilon: Last time of the schedule, which runs from 1.
    """

    own_rule: ClassVar[str] = "schedule"  # or its algorithm's
    choice: ClassVar[Choice] = "draw"

    steps: Count | None = None
    algorithm: Literal["origin", "maskgit_plus", "topk_margin", "entropy", "p2"] = "origin"
    _: KW_ONLY
    algorithm_temperature: NonNegative | None = None
    temperature: NonNegative = 1.0
    top_p: Share | None = 1.0
    top_k: Count | None = 50
    epsilon: Share = 1e-3
    shift: Truth | None = None

    @property
    def confidence(self) -> Confidence:  # type: ignore[override]
        return ALGORITHMS[self.algorithm][0]

    @property
    def commit_rule(self) -> str:
        return self.commit or ALGORITHMS[self.algorithm][1]

    @property
    def caches(self) -> tuple[str | None, ...]:  # type: ignore[override]
        own = {rule for _, rule in ALGORITHMS.values()}  # which rank the whole canvas
        return (None, "sparse") if self.commit_rule in own else (None, "prefix", "dual", "sparse")

    def complete(self) -> None:
        if self.steps is None:
            self.put(steps=self.length)


@register("schedule")
class Schedule(CommitRule):
    """The most confident (or drawn by their confidence), as many as the schedule resolves at this time."""

    def begin(self) -> None:
        self.steps: int = self.settings.steps // self.settings.blocks
        self.times = torch.linspace(1, self.settings.epsilon, self.steps + 1)

    def is_unfinished(self) -> bool:
        return self.step < self.steps

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        count = dream_count(self.open().sum(1).cpu(), self.times, self.step)
        ranked = confidence.to(torch.float32)
        if count and self.settings.algorithm_temperature:
            weights = (ranked / self.settings.algorithm_temperature).softmax(-1)
            drawn = self.run.noise.subset(weights, count).to(ranked.device)
            return Picks(torch.zeros_like(ranked, dtype=torch.bool).scatter(1, drawn, True))
        return Picks(most_confident(ranked, [count] * len(ranked), self.run.padding))


@register("origin")
class Origin(Schedule):
    """Each mask by itself with the probability of this time; which ones is drawn before the tokens are."""

    def candidate_positions(self) -> Tensor:
        wanted = self.open()
        where = wanted.flatten().nonzero().squeeze(-1)
        drawn = self.run.noise.uniform(where).to(wanted.device)
        last = self.step == self.steps - 1
        share = 1.0 if last else dream_share(self.times, self.step).to(wanted.device)
        return wanted.flatten().index_put((where,), drawn < share).view_as(wanted)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        return Picks(confidence > -torch.inf)


def dream_share(times: Tensor, step: int) -> Tensor:
    """Share of the masks that Dream resolves at this step, in float32: float64 gives other counts."""
    return 1 - times[step + 1] / times[step]


def dream_count(open_masks: Tensor, times: Tensor, step: int) -> int:
    """open_masks [batch] → how many positions a row commits; the last step takes all."""
    mean = open_masks.sum() / open_masks.shape[0]
    last = step == len(times) - 2
    return int(mean) if last else int(mean * dream_share(times, step))


@register("p2")
class PathPlanning(Schedule):
    """Open-dCoder: step i of n keeps the most confident (i + 1) / n of the answer, and masks the rest again."""

    def candidate_positions(self) -> Tensor:
        """All generated positions, known or not."""
        return self.block.inside & self.run.canvas.real & ~self.run.done.unsqueeze(1)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        answer, open_positions = self.candidate_positions(), self.open()
        kept = answer.clone()
        for row in range(len(answer)):
            places = answer[row].nonzero().flatten()
            count = int(len(places) * (1 - (self.step + 1) / self.steps))
            kept[row, places[confidence[row, places].argsort(stable=True)[:count]]] = False
        return Picks(commit=kept & open_positions, reopen=answer & ~kept & ~open_positions)


@register("sparse_dllm")
class BlockSchedule(Schedule):
    """Sparse-dLLM's for Dream: the first step commits the block's first column, the others a share of its masks.

    So the block can run alone.
    """

    block_only: ClassVar[bool] = True

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        if self.step == 0:
            first = torch.zeros_like(confidence, dtype=torch.bool)
            first[:, self.block.span[0]] = True
            return Picks(first & self.open())
        masks = self.open().sum(1).tolist()
        last = self.step == self.steps - 1
        share = 1.0 if last else float(dream_share(self.times, self.step))
        counts = [int(count * share) for count in masks]
        start, stop = self.block.span
        chosen = torch.zeros_like(self.block.inside)
        # Ties fall as of a topk over the block alone.
        chosen[:, start:stop] = most_confident(
            confidence[:, start:stop].float(), counts, torch.zeros(len(counts)).int()
        )
        return Picks(chosen)
