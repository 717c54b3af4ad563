"""The sampler of d2Cache's repository: confidence times how much is known around a column, or confidence without habit."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.caches.d2cache import certainty_density
from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.choose import CommitRule, register
from sinkscope.decoding.samplers.llada import LLaDA, Quota
from sinkscope.decoding.settings import Cache, Choice, Decode, sampler
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, NonNegative, Positive, Share, Text


@sampler("certainty")
class Certainty(Decode):
    """Sampler by a threshold on a score: commit every token whose score reaches it, block by block from left to right.

    The score is the confidence, which `sigma` and `frequencies` change.

    Args:
        threshold: Smallest score at which a token is committed; None commits `at_least` tokens per step.
        at_least: Smallest number of tokens committed per step.
        sigma: Width, in columns, of the certainty density that multiplies the confidence; None switches it off.
        frequencies: JSON file of token counts, for the debiased confidence of PC-Sampler; None switches it off.
        clip: Largest debiased confidence.
    """

    own_rule: ClassVar[str] = "certainty"
    choice: ClassVar[Choice] = "draw"
    confidence_dtype: ClassVar[Literal["model", "float32", "float64"]] = "float32"
    caches: ClassVar[tuple[str | None, ...]] = (None, "prefix", "dual", "sparse")

    block: Count | None = None
    _: KW_ONLY
    threshold: Share | None = None
    at_least: Count = 1
    sigma: Positive | None = None
    frequencies: Text | None = None
    clip: Positive = 10.0
    temperature: NonNegative = 0.0
    top_p: Share | None = None
    top_k: Count | None = None
    cache: Cache = None


@register("certainty")
class CertaintyRule(CommitRule):
    """Above the threshold, and at least as many as the settings say."""

    reads: ClassVar[tuple[str, ...]] = ("threshold",)
    block_only: ClassVar[bool] = True

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        settings = self.settings
        score = confidence
        if settings.frequencies is not None:
            score = debiased(candidates, score, read_frequencies(settings.frequencies), settings.clip, 1e-10)
        if settings.sigma is not None:
            score = score * certainty_density(self.run.canvas, settings.sigma)
        score = score.masked_fill(confidence == -torch.inf, -torch.inf)
        chosen = self.best(score, [settings.at_least] * len(score))
        return Picks(chosen if settings.threshold is None else chosen | (score >= settings.threshold))


def debiased(tokens: Tensor, confidence: Tensor, frequencies: Tensor, clip: float, floor: float) -> Tensor:
    """Confidence times how much a token tells, at most `clip`: what is written everywhere is worth little."""
    habit = frequencies.to(tokens.device)[tokens.clamp(max=len(frequencies) - 1)]
    return (-confidence.float() * (habit + floor).log()).clamp(max=clip)


@cache
def read_frequencies(path: str) -> Tensor:
    """Share of each token [token], from a file {"num_token": n, "p_baseline_dict": {token: count}}; others count once."""
    try:
        words = json.loads(Path(path).read_text(encoding="utf-8"))
        total, counts = (
            int(words["num_token"]),
            {int(token): count for token, count in words["p_baseline_dict"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError(
            f"Expected a table of token counts as JSON (num_token and p_baseline_dict) in {path}, and reading it failed "
            f"({type(error).__name__}); name a file as PC-Sampler's authors write it."
        ) from None
    shares = torch.full((max([*counts, 1 << 18]) + 1,), 1 / total)
    shares[list(counts)] = torch.tensor([count / total for count in counts.values()], dtype=shares.dtype)
    return shares


@sampler("pc_sampler")
class PCSampler(LLaDA):
    """PC-Sampler (arXiv 2508.13021): LLaDA's quota per step, ranked by a debiased confidence that decreases along the
    block.

    Args:
        frequencies: JSON file of token counts in a reference corpus (`num_token` and `p_baseline_dict`); required.
        decay: Rate at which the score decreases per column (the authors' lambda).
        clip: Largest debiased confidence (the authors' alpha).
    """

    own_rule: ClassVar[str] = "pc_sampler"

    frequencies: Text = ""
    _: KW_ONLY
    decay: NonNegative = 0.25
    clip: Positive = 10.0

    def check(self) -> None:
        if not self.frequencies:
            raise DecodeError("Expected frequencies=FILE with pc_sampler, a table of token counts as JSON, got none.")
        super().check()


@register("pc_sampler")
class PCRule(Quota):
    """The quota of this step, by debiased confidence and place."""

    block_only: ClassVar[bool] = True

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        settings = self.settings
        score = debiased(candidates, confidence, read_frequencies(settings.frequencies), settings.clip, 1e-9)
        place = torch.arange(score.shape[1], device=score.device) - self.block.span[0]
        score = score * (-settings.decay * place.float()).exp()
        score = score.masked_fill(confidence == -torch.inf, -torch.inf)
        return Picks(self.best(score, self.counts(confidence)))
