"""KLASS: commit what is confident and whose distribution has stopped moving; else a quota, most confident first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.choose import CHOICES, Chooser, CommitRule, confidence_of, register, truncated
from sinkscope.decoding.samplers.llada import Quota
from sinkscope.decoding.settings import Choice, Decode, sampler
from sinkscope.validation import Count, NonNegative, Positive, Share

TINY = 1e-12  # added to probabilities before their logarithm


@sampler("klass")
class KLASS(Decode):
    """Sampler of KLASS (arXiv 2511.05664): commit tokens that are confident and whose distribution is stable.

    `commit="klass_dream"` is the authors' variant for Dream, `commit="klass_port"` the version of d2Cache. With fewer
    steps than tokens, mask tokens can be left in the answer, as in the authors' code.

    Args:
        steps: Largest number of denoising steps; the default is `length`.
        threshold: Smallest confidence of a stable token; None treats no token as stable ("klass_port" only).
        kl_threshold: Largest Kullback-Leibler divergence from the previous forward, in nats, of a stable token.
        history: Number of successive forwards whose divergence must be below `kl_threshold`.
        take: Which stable tokens are committed: "all", the most confident one ("max_conf"), or the one with the
            smallest divergence ("min_kl").
        at_least: Number of tokens committed at a step without stable tokens ("klass_port" only).
    """

    own_rule: ClassVar[str] = "klass"
    choice: ClassVar[Choice] = "klass"

    block: Count | None = None
    steps: Count | None = None
    _: KW_ONLY
    threshold: Share | None = 0.9
    kl_threshold: Positive = 0.01
    history: Count = 2
    take: Literal["all", "max_conf", "min_kl"] = "all"
    at_least: Count = 1
    temperature: NonNegative = 0.0
    top_p: Share | None = None
    top_k: Count | None = None

    def complete(self) -> None:
        if self.steps is None:
            self.put(steps=self.length)


class Stability(Chooser):
    """The likeliest token, how sure it is, and how far its distribution has moved since the forward before."""

    before: Tensor | None = None  # [batch × position, vocab] float64: distributions of the forward before
    history: Tensor | None = None  # [batch × position, history]: the newest divergences, the newest last
    order: Tensor  # [batch × position]: by which the fallback ranks

    @property
    def whole(self) -> bool:
        return bool(self.settings.temperature > 0 and self.settings.noise == "reference")

    def choose(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        settings, rule = self.settings, self.settings.commit_rule
        places = where.to(logits.device)
        self.make_room(int(self.noise.positions), int(where.max()) + 1, logits)
        assert self.before is not None and self.history is not None
        if rule == "klass_port":
            shares = truncated(logits, settings.top_p, settings.top_k).float().softmax(-1)
            logs = (shares + TINY).log().double()
        else:
            shares = self.sharpened(logits, where).softmax(-1)
            logs = (shares + TINY).log()
        moved = (shares.double() * (logs - (self.before[places] + TINY).log())).sum(-1)
        self.before[places] = shares.double()
        self.history[places] = torch.cat([self.history[places][:, 1:], moved[:, None]], 1)
        chosen = shares.argmax(-1)
        confidence = confidence_of(shares, chosen, "probability").double()
        self.order[places] = self.drawn_confidence(logits, where) if rule == "klass_dream" else confidence
        return chosen, confidence

    def make_room(self, positions: int, least: int, like: Tensor) -> None:
        rows = -(-least // positions)
        have = 0 if self.before is None else len(self.before)
        if have >= rows * positions:
            return
        before, vocabulary = self.before, like.shape[-1]
        history = self.history
        self.before = torch.zeros(rows * positions, vocabulary, dtype=torch.float64, device=like.device)
        self.history = torch.zeros(rows * positions, self.settings.history, dtype=torch.float64, device=like.device)
        self.order = torch.full((rows * positions,), -torch.inf, dtype=torch.float64, device=like.device)
        if before is not None and history is not None:
            self.before[:have], self.history[:have] = before, history

    def sharpened(self, logits: Tensor, where: Tensor) -> Tensor:
        """What the softmax is of: with temperature, exp(logits) over noise, as in the authors' code for LLaDA."""
        temperature = self.settings.temperature
        if temperature == 0 or self.settings.commit_rule == "klass_dream":
            return logits.double()
        uniform = self.noise.token_uniform(where.to(logits.device), logits.shape[-1]).to(logits.device)
        return logits.double().exp() / uniform.log().neg().pow(temperature)

    def drawn_confidence(self, logits: Tensor, where: Tensor) -> Tensor:
        """Confidence of Dream's own sampler: of a token that is drawn, or of the likeliest; it only orders."""
        settings = self.settings
        if settings.temperature > 0:
            logits = logits / settings.temperature
        shares = truncated(logits, settings.top_p, settings.top_k).softmax(-1)
        drawn = self.noise.draw(shares, where) if settings.temperature > 0 else shares.argmax(-1)
        return confidence_of(shares, drawn.to(logits.device), "probability").double()

    def end(self, vocabulary: int) -> None:
        if self.settings.temperature > 0 and self.settings.commit_rule != "klass_dream":
            self.noise.end_step(vocabulary)


CHOICES["klass"] = Stability


@register("klass", needs=["threshold", "kl_threshold"])
class KLASSRule(Quota):
    """Confident and stable; waits in every block until the history can be full, and commits the step's quota meanwhile."""

    block_only: ClassVar[bool] = True

    def is_unfinished(self) -> bool:
        return super().is_unfinished() and CommitRule.is_unfinished(self)

    def candidate_positions(self) -> Tensor:
        """All masks of rows whose block is open: the history of a column begins before its block does."""
        open_here = self.open()
        goes_on = open_here.any(1, keepdim=True)
        answer = self.run.canvas.real & ~self.run.canvas.given
        if (
            self.counts(open_here) > open_here.sum(1).tolist()
        ):  # a quota beyond the masks: the authors' code writes others anew
            return answer & goes_on
        return self.run.canvas.masked_positions() & answer & goes_on

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        confidence = confidence.masked_fill(~self.open(), -torch.inf)
        newest = self.per_column(self.stability.history)[..., -1]
        ready = self.ready(confidence)
        if self.settings.take == "max_conf":
            ready = best_of(ready, confidence)
        elif self.settings.take == "min_kl":
            ready = best_of(ready, -newest)
        order = self.per_column(self.stability.order).masked_fill(confidence == -torch.inf, -torch.inf)
        instead = self.ranked(order)
        chosen = torch.where(ready.any(1, keepdim=True), ready, instead)
        return Picks(chosen & self.open(), edit=chosen & ~self.open())

    @property
    def stability(self) -> Stability:
        chooser = self.run.chooser
        assert isinstance(chooser, Stability)
        return chooser

    def per_column(self, flat: Tensor | None) -> Tensor:
        """[batch × position, …] of the chooser as [batch, position, …] of the canvas."""
        assert flat is not None
        batch, width = self.run.canvas.tokens.shape
        columns: Tensor = flat[: batch * width].view(batch, width, *flat.shape[1:])
        return columns.to(self.run.canvas.tokens.device)

    def stable(self) -> Tensor:
        below: Tensor = self.per_column(self.stability.history) < self.settings.kl_threshold
        return below.all(-1)

    def ready(self, confidence: Tensor) -> Tensor:
        """bool [batch, position]: what may be committed."""
        if self.step < self.settings.history - 1:
            return torch.zeros_like(confidence, dtype=torch.bool)
        sure: Tensor = confidence > self.settings.threshold
        return self.stable() & sure

    def ranked(self, order: Tensor) -> Tensor:
        """The fallback's commits, bool [batch, position]; a quota beyond the masks takes columns that topk finds first."""
        chosen = torch.zeros_like(order, dtype=torch.bool)
        for row, count in enumerate(self.counts(order)):
            chosen[row, order[row].topk(count).indices] = True
        return chosen


@register("klass_dream", needs=["threshold", "kl_threshold"])
class KLASSDream(KLASSRule):
    """Dream: no waiting, a threshold that may be met exactly, and one token where nothing is ready."""

    def ready(self, confidence: Tensor) -> Tensor:
        sure: Tensor = confidence >= self.settings.threshold
        return self.stable() & sure

    def ranked(self, order: Tensor) -> Tensor:
        return best_of(order > -torch.inf, order)

    def counts(self, confidence: Tensor) -> list[int]:
        return [1] * len(confidence)


@register("klass_port", needs=["kl_threshold"])
class KLASSPort(KLASSRule):
    """d2Cache's: as for Dream, in blocks; steps have no limit, and without a threshold nothing is ready."""

    needs: ClassVar[Sequence[str]] = ()
    reads: ClassVar[Sequence[str]] = ("threshold",)

    def is_unfinished(self) -> bool:
        return CommitRule.is_unfinished(self)

    def ready(self, confidence: Tensor) -> Tensor:
        if self.settings.threshold is None:
            return torch.zeros_like(confidence, dtype=torch.bool)
        sure: Tensor = confidence >= self.settings.threshold
        return self.stable() & sure

    def ranked(self, order: Tensor) -> Tensor:
        return self.best(order, self.counts(order))

    def counts(self, confidence: Tensor) -> list[int]:
        return [self.settings.at_least] * len(confidence)


def best_of(ready: Tensor, score: Tensor) -> Tensor:
    """The best of each row among what is ready, bool [batch, position]."""
    best = score.masked_fill(~ready, -torch.inf).argmax(1, keepdim=True)
    return torch.zeros_like(ready).scatter(1, best, True) & ready
