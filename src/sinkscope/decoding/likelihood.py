"""How likely a text is: the exact chain rule for autoregressive models, a lower bound for diffusion models.

A diffusion model has no order of its own. With m of the n answer tokens masked at random, m uniform in 1…n, the mean of
n/m · Σ log p(masked token | the rest) is the chain rule averaged over all orders. That is a lower bound of log p, and what the
published evaluations report. Where all 2ⁿ − 1 maskings are no more than the samples asked for, all are taken: exact.

BD3-LM's own bound is the sum of these over its blocks, the earlier ones unmasked and the later ones not there. GIDD's own bound
has noise that is not masks alone: the mean over its times and noisy texts.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.attention.forward import COMMITTED, MASKED, PRIME, PROMPT, Forward, forward_context
from sinkscope.decoding.decoder import decode, resolve_settings
from sinkscope.decoding.forwards import BlockForwards, Forwards
from sinkscope.decoding.samplers.gidd import mixing
from sinkscope.errors import PromptError
from sinkscope.models.model import Model, pad


@dataclass(frozen=True)
class Likelihood:
    """Natural log-likelihood of an answer, its standard error (0 where exact), and whether greedy decoding gives it."""

    value: float
    error: float
    greedy: bool
    tokens: int
    forwards: int


@torch.inference_mode()
def masked_likelihood(
    model: Model,
    context: list[int],
    answer: list[int],
    *,
    samples: int = 128,
    batch_size: int = 8,
    seed: int = 0,
    settle: bool = False,
    greedy: bool = True,
) -> Likelihood:
    """Estimate for a diffusion model; `settle` runs each canvas twice, for interventions that rank the map before."""
    _check(model, context, answer)
    value, variance, forwards = 0.0, 0.0, 0
    for part in bound_parts(model, len(context), len(answer), samples, seed):
        scores: list[float] = []
        for start in range(0, part.count, batch_size):
            scores += score_part(model, context, answer, part.take(slice(start, start + batch_size)), settle)
        value += part.mean(scores)
        variance += 0.0 if part.exact else variance_of_mean(scores)
        forwards += part.count * (2 if settle else 1)
    is_greedy = greedy and _is_greedy(model, context, answer)
    return Likelihood(value, math.sqrt(variance), is_greedy, len(answer), forwards)


def variance_of_mean(scores: list[float]) -> float:
    """Of an evenly spread sample, from differences of neighbours."""
    if len(scores) < 2:
        return math.nan
    apart = sum((a - b) ** 2 for a, b in itertools.pairwise(scores))
    return apart / (2 * (len(scores) - 1) * len(scores))


class Part(ABC):
    """Noisy versions of an answer, or of some of its tokens: the mean of their scores is a bound on log p."""

    exact = False  # the mean is the bound itself, and no estimate of it

    @property
    @abstractmethod
    def count(self) -> int:
        """How many versions there are."""

    @abstractmethod
    def take(self, which: slice) -> Part:
        """Some of the versions."""

    @abstractmethod
    def noisy(self, model: Model, answer: Tensor) -> Tensor:
        """answer [token] → its versions [version, token]."""

    def times(self, model: Model) -> Tensor | None:
        """[version]: how noisy each is, where the model is told; None: it sees it by the masks."""
        return None

    @abstractmethod
    def score(self, model: Model, answer: Tensor, noisy: Tensor, hidden: Tensor) -> Tensor:
        """One number per version [version]; hidden [version, token, width] are those that predict the tokens."""

    def mean(self, scores: list[float]) -> float:
        """The bound, in nats."""
        return sum(scores) / len(scores)


def bound_parts(model: Model, start: int, count: int, samples: int, seed: int) -> list[Part]:
    """What is to be read for the bound that the model was trained on, of `count` tokens behind the first `start`."""
    generator = torch.Generator().manual_seed(seed)
    if model.family.bound == "hybrid":
        spread = (torch.arange(samples) + torch.rand(1, generator=generator, dtype=torch.float64)) / samples
        return [Noisings(spread, torch.rand(samples, count, 3, generator=generator, dtype=torch.float64))]
    size, whole = model.block if model.family.bound == "blocks" else None, start + count
    edges = range((start // size + 1) * size, whole, size) if size else ()
    parts: list[Part] = []
    for number, (first, stop) in enumerate(itertools.pairwise([start, *edges, whole])):
        parts.append(make_maskings(first - start, stop - start, samples, seed + number * PRIME))
    return parts


@dataclass(frozen=True)
class Maskings(Part):
    """Maskings of some neighbouring tokens of an answer; those behind them are not there."""

    patterns: Tensor  # bool [version, token], up to the last of the tokens that may be masked
    first: int = 0  # of the tokens that may be masked
    exact: bool = False

    @property
    def count(self) -> int:
        return len(self.patterns)

    def take(self, which: slice) -> Maskings:
        return replace(self, patterns=self.patterns[which])

    def noisy(self, model: Model, answer: Tensor) -> Tensor:
        return torch.where(self.patterns.to(answer.device), model.require_mask(), answer[: self.patterns.shape[1]])

    def score(self, model: Model, answer: Tensor, noisy: Tensor, hidden: Tensor) -> Tensor:
        """n/m · Σ log p of the m masked of n tokens."""
        patterns = self.patterns.to(hidden.device)
        where, which = patterns.nonzero(as_tuple=True)
        scored = log_probabilities(model, hidden[where, which])
        found = scored.gather(-1, answer[which].unsqueeze(-1)).squeeze(-1).double()
        sums = torch.zeros(len(patterns), dtype=torch.float64, device=found.device).index_add(0, where, found)
        return sums * (patterns.shape[1] - self.first) / patterns.sum(1)

    def mean(self, scores: list[float]) -> float:
        if not self.exact:
            return super().mean(scores)
        tokens = self.patterns.shape[1] - self.first
        # Sizes are equally likely, and so are the patterns of one size.
        weights = [tokens * math.comb(tokens, int(pattern.sum())) for pattern in self.patterns]
        return sum(score / weight for score, weight in zip(scores, weights, strict=True))


def make_maskings(first: int, stop: int, samples: int, seed: int) -> Maskings:
    """Maskings of the tokens first … stop of an answer: all of them where they are no more than the samples."""
    tokens = stop - first
    exact = 2**tokens - 1 <= samples
    if exact:
        drawn = [torch.tensor(bits) for bits in itertools.product((False, True), repeat=tokens) if any(bits)]
    else:
        drawn = list(drawn_patterns(tokens, samples, seed))
    patterns = torch.zeros(len(drawn), stop, dtype=torch.bool)
    patterns[:, first:] = torch.stack(drawn)
    return Maskings(patterns, first, exact)


@dataclass(frozen=True)
class Noisings(Part):
    """An answer under GIDD's noise at times between 0 and 1, which are denser where the noise is small.

    Of the integral over times t of cost(t) the substitution t = u³ makes the mean over u of 3u² · cost: without it a token
    that is replaced early, which is rare and costs 1 / t, would give the estimate no finite variance.
    """

    spread: Tensor  # [version] float64: u
    draws: Tensor  # [version, token, 3] float64: whether the token stays, whether it is masked, what else it becomes

    @property
    def count(self) -> int:
        return len(self.spread)

    def take(self, which: slice) -> Noisings:
        return Noisings(self.spread[which], self.draws[which])

    def noisy(self, model: Model, answer: Tensor) -> Tensor:
        mask, rows = model.require_mask(), []
        for u, draws in zip(self.spread, self.draws.to(answer.device), strict=True):
            kept, noise = mixing(u**3, model.config.p_uniform, model.vocabulary, mask)
            stays, masked, other = draws.unbind(-1)
            tokens = (other * (model.vocabulary - 1)).long()
            tokens = torch.where(masked * (1 - kept) < noise[mask], mask, tokens + (tokens >= mask))
            rows.append(torch.where(stays < kept, answer, tokens))
        return torch.stack(rows)

    def times(self, model: Model) -> Tensor:
        edge = float(model.config.noise)
        return (self.spread**3).clamp(edge, 1 - edge)

    def score(self, model: Model, answer: Tensor, noisy: Tensor, hidden: Tensor) -> Tensor:
        scores = []
        for u, tokens, row in zip(self.spread, noisy, hidden, strict=True):
            chances = log_probabilities(model, row).double().exp()
            cost = noise_cost(chances, answer, tokens, u**3, model.config.p_uniform, model.require_mask())
            scores.append(-3 * u**2 * cost.sum())
        return torch.stack(scores)


def noise_cost(chances: Tensor, answer: Tensor, noisy: Tensor, time: Tensor, share: float, mask_id: int) -> Tensor:
    """Nats [token] per unit of time by which GIDD's bound is lower for each token that stands there at this time.

    chances [token, vocab] float64 are the model's, answer and noisy ids [token]. The rate at which noise puts the token there
    over its chance, times the divergence of the noisy chances of all tokens and that of this token (Kullback–Leibler and
    Itakura–Saito).
    """
    kept, noise = mixing(time, share, chances.shape[-1], mask_id)
    kept, noise = kept.to(chances), noise.to(chances)
    guessed = noise + kept * chances
    true, guess = noise[answer] + kept, guessed.gather(-1, answer[:, None])[:, 0]
    others = noise * (guessed / noise).log()
    whole = true * (true / guess).log() - others.sum(-1) + others.gather(-1, answer[:, None])[:, 0]
    here = noise[noisy] + kept * (noisy == answer)
    ratio = here / guessed.gather(-1, noisy[:, None])[:, 0]
    rate = noise[noisy] / (time * (1 - time)) * torch.where(noisy == mask_id, 1.0, 0.5)
    return rate / here * (whole + ratio - 1 - ratio.log())


def drawn_patterns(count: int, samples: int, seed: int) -> Iterator[Tensor]:
    """bool [token]: numbers of masks spread evenly over 1…count from one random start, positions drawn each time."""
    generator = torch.Generator().manual_seed(seed)
    start = float(torch.rand(1, generator=generator))
    for index in range(samples):
        masks = 1 + min(int(count * (index + start) / samples), count - 1)
        pattern = torch.zeros(count, dtype=torch.bool)
        pattern[torch.randperm(count, generator=generator)[:masks]] = True
        yield pattern


@torch.inference_mode()
def score_part(
    model: Model,
    context: list[int],
    answer: list[int],
    part: Part,
    settle: bool,
    settled: Callable[[], object] | None = None,
) -> list[float]:
    """One number per noisy version of the answer.

    settle: each canvas is run twice, and the second counts; `settled` is called in between.
    """
    width, tokens = len(context), torch.tensor(answer, device=model.device)
    noisy, times, run = part.noisy(model, tokens), part.times(model), object()
    canvas = torch.cat([torch.tensor(context, device=model.device).expand(len(noisy), -1), noisy], 1)
    if settle:
        canvas_hidden(model, canvas, width, run, 0, times)
        if settled is not None:
            settled()
    hidden = canvas_hidden(model, canvas, width, run, int(settle), times)
    first = width - int(model.shift)
    scores: list[float] = part.score(model, tokens, noisy, hidden[:, first : first + noisy.shape[1]]).tolist()
    return scores


def log_probabilities(model: Model, hidden: Tensor) -> Tensor:
    """hidden [position, width] → [position, vocab]; rows of the head that stand for no token have none."""
    logits = model.family.head(model.module, hidden).float()
    if (valid := model.valid_vocab_size) is not None:
        logits[:, valid:] = -torch.inf
    return logits.log_softmax(-1)


def canvas_hidden(
    model: Model, canvas: Tensor, width: int, run: object, step: int, time: Tensor | None = None
) -> Tensor:
    """Hidden states of canvases [batch, position] behind prompts of `width`, as this step of a run sees them.

    time [batch]: how noisy they are, for models that are told; None: what their masks say.
    """
    labels = torch.full_like(canvas, COMMITTED).masked_fill(canvas.eq(model.mask_id or 0), MASKED)
    labels[:, :width] = PROMPT
    forwards: Forwards = Forwards(model)
    span = width, canvas.shape[1]
    if model.block is not None:
        forwards, span = BlockForwards(model, model.block, False, model.shift), (0, canvas.shape[1])
    visible = forwards.visible(canvas, None, span, False)
    forward = Forward(
        run, step, labels, len(canvas), 0, None, width, ids=canvas, time=time,
        visible=None if visible is None else visible[:, 0],
    )  # fmt: skip
    with forward_context(forward):
        return forwards(canvas, None, span)


def _is_greedy(model: Model, context: list[int], answer: list[int]) -> bool:
    """Whether the family's decoder, one commit per step and without noise, gives this answer."""
    words: dict[str, Any] = {"length": len(answer), "temperature": 0.0}
    if model.defaults.guidance:
        words["guidance"] = 0.0
    if model.defaults.steps is not None:
        words |= {"steps": len(answer), "block": None}
    settings = resolve_settings(model.defaults, model, len(context), words)
    done = decode(model, torch.tensor([context]), settings, history=False)
    return bool(done.returned[0].tolist() == answer)


@torch.inference_mode()
def read_spans(model: Model, ids: Tensor, stops: Sequence[int]) -> Iterator[Tensor]:
    """Read texts in spans, up to each of `stops`, as an autoregressive model reads its prompt and then what it wrote.

    ids: [text, position]. Gives the log-probabilities of the tokens that follow, [text, read, vocab]; of the first span
    only those behind its last token.
    """
    cached, run, module, start = DynamicCache(config=model.config), object(), cast("Any", model.module), 0
    for step, stop in enumerate(stops):
        labels = torch.full((len(ids), stop - start), COMMITTED if step else PROMPT, device=ids.device)
        forward = Forward(run, step, labels, len(ids), start, None, stops[0], ids=ids[:, :stop], causal=True)
        with forward_context(forward):
            output = module(ids[:, start:stop], past_key_values=cached, use_cache=True, logits_to_keep=0 if step else 1)
        yield output.logits.float().log_softmax(-1)
        start = stop


@torch.inference_mode()
def chain_likelihoods(
    model: Model, pairs: list[tuple[list[int], list[int]]], *, settle: bool = False
) -> list[Likelihood]:
    """Exact log-likelihoods of (context, answer) pairs under an autoregressive model, in one padded batch."""
    for context, answer in pairs:
        _check(model, context, answer)
    ids, mask = pad([torch.tensor([context + answer]) for context, answer in pairs], model)
    labels = torch.where(mask.bool(), PROMPT, -1).to(model.device)
    padding, run = None if bool(mask.all()) else (mask == 0).sum(1), object()
    own = model.family.visible(model, ids, mask.bool())
    visible = None if own is None else own[:, 0]
    for step in range(2 if settle else 1):
        forward = Forward(
            run, step, labels, len(ids), 0, padding, ids.shape[1], ids=ids, causal=own is None, visible=visible
        )
        with forward_context(forward):
            logits = model.logits(ids, mask)
    found = []
    for (_, answer), row in zip(pairs, logits, strict=True):
        tokens = torch.tensor(answer, device=row.device)
        scores = row[-len(answer) - 1 : -1].float().log_softmax(-1)
        value = float(scores.gather(-1, tokens.unsqueeze(-1)).double().sum())
        found.append(Likelihood(value, 0.0, bool((scores.argmax(-1) == tokens).all()), len(answer), 1))
    return found


def _check(model: Model, context: list[int], answer: list[int]) -> None:
    if not context or not answer or len(context) + len(answer) > model.context:
        raise PromptError(
            f"Expected a context and an answer of at least one token each, and at most {model.context} in all, got "
            f"{len(context)} and {len(answer)}."
        )
