"""How likely a text is: the exact chain rule for autoregressive models, a masked estimate for diffusion models.

A diffusion model has no order of its own. With m of the n answer tokens masked at random, m uniform in 1…n, the mean of
n/m · Σ log p(masked token | the rest) is the chain rule averaged over all orders. That is a lower bound of log p, and what the
published evaluations report. Where all 2ⁿ − 1 maskings are no more than the samples asked for, all are taken: exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.attention.forward import COMMITTED, MASKED, PROMPT, Forward, forward_context
from sinkscope.decoding.decoder import decode, resolve_settings
from sinkscope.decoding.forwards import BlockForwards, Forwards
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
    count = len(answer)
    exact = 2**count - 1 <= samples
    patterns = list(drawn_patterns(count, samples, seed))
    if exact:
        patterns = [torch.tensor(bits) for bits in itertools.product((False, True), repeat=count) if any(bits)]
    scores: list[float] = []
    for start in range(0, len(patterns), batch_size):
        scores += masked_scores(model, context, answer, torch.stack(patterns[start : start + batch_size]), settle)
    if exact:  # sizes are equally likely, and so are the patterns of one size
        weights = [count * math.comb(count, int(pattern.sum())) for pattern in patterns]
        value, error = sum(score / weight for score, weight in zip(scores, weights, strict=True)), 0.0
    else:
        value = sum(scores) / len(scores)
        # Of the mean of an evenly spread sample, from differences of neighbours.
        apart = sum((a - b) ** 2 for a, b in itertools.pairwise(scores))
        error = math.sqrt(apart / (2 * (len(scores) - 1) * len(scores))) if len(scores) > 1 else math.nan
    is_greedy = greedy and _is_greedy(model, context, answer)
    return Likelihood(value, error, is_greedy, count, len(patterns) * (2 if settle else 1))


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
def masked_scores(
    model: Model,
    context: list[int],
    answer: list[int],
    patterns: Tensor,
    settle: bool,
    settled: Callable[[], object] | None = None,
) -> list[float]:
    """patterns bool [batch, token] → n/m · Σ log p of the masked tokens, one number per row.

    settle: each canvas is run twice, and the second counts; `settled` is called in between.
    """
    assert model.mask_id is not None
    rows, width = len(patterns), len(context)
    patterns = patterns.to(model.device)
    tokens = torch.tensor(answer, device=model.device)
    canvas = torch.tensor(context + answer, device=model.device).repeat(rows, 1)
    canvas[:, width:] = torch.where(patterns, model.mask_id, canvas[:, width:])
    run = object()
    if settle:
        canvas_hidden(model, canvas, width, run, 0)
        if settled is not None:
            settled()
    hidden = canvas_hidden(model, canvas, width, run, int(settle))
    where, which = patterns.nonzero(as_tuple=True)
    sources = width + which - int(model.shift)
    scored = log_probabilities(model, hidden[where, sources])
    found = scored.gather(-1, tokens[which].unsqueeze(-1)).squeeze(-1).double()
    sums = torch.zeros(rows, dtype=torch.float64, device=found.device).index_add(0, where, found)
    scores: list[float] = (sums * len(answer) / patterns.sum(1)).tolist()
    return scores


def log_probabilities(model: Model, hidden: Tensor) -> Tensor:
    """hidden [position, width] → [position, vocab]; rows of the head that stand for no token have none."""
    logits = model.family.head(model.module, hidden).float()
    if (valid := model.valid_vocab_size) is not None:
        logits[:, valid:] = -torch.inf
    return logits.log_softmax(-1)


def canvas_hidden(model: Model, canvas: Tensor, width: int, run: object, step: int) -> Tensor:
    """Hidden states of canvases [batch, position] behind prompts of `width`, as this step of a run sees them."""
    labels = torch.full_like(canvas, COMMITTED).masked_fill(canvas.eq(model.mask_id or 0), MASKED)
    labels[:, :width] = PROMPT
    forwards: Forwards = Forwards(model)
    span = width, canvas.shape[1]
    if model.block is not None:
        forwards, span = BlockForwards(model, model.block, False, model.shift), (0, canvas.shape[1])
    visible = forwards.visible(canvas, None, span, False)
    forward = Forward(
        run, step, labels, len(canvas), 0, None, width, ids=canvas, visible=None if visible is None else visible[:, 0]
    )
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
