"""GIDD's samplers: a reverse step may change any token, and self-correction changes a finished text token by token."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.decoding.noisy import NoisyCanvas, NoisyDecode, known_tokens
from sinkscope.decoding.samplers.mdlm import reverse_weights
from sinkscope.decoding.settings import Layout, sampler
from sinkscope.errors import DecodeError, PromptError
from sinkscope.validation import Count, FromZero, NonNegative, Share, Truth

LEAST_UNIFORM = math.exp(-20)
MDLM_NOISE = 1e-4
Mixing = tuple[Tensor, Tensor]  # how much of a token is left, and the chances [vocab] of what stands in its place
Below1 = Annotated[float, Field(strict=True, ge=0, lt=1)]


@sampler("gidd")
class GIDD(NoisyDecode):
    """GIDD's reverse steps from masks; where the noise has uniform tokens, tokens that are written may change again.

    p_uniform: share of uniform noise, the checkpoint's unless given. min_p: smaller chances are cut. rule "mdlm" is the
    authors' sampler for mask noise alone. A prompt is kept, which the authors' code does not offer.
    """

    steps: Count | None = 128
    _: KW_ONLY
    p_uniform: Below1 | None = None
    min_p: Share = 0.0
    rule: Literal["gidd", "mdlm"] = "gidd"

    def write(self, state: NoisyCanvas) -> None:
        config, edge = state.model.config, float(state.model.config.noise)
        grid = torch.linspace(edge, 1 - edge, (self.steps or 1) + 1)[:-1]  # no forward is made at the largest time
        share = float(config.p_uniform if self.p_uniform is None else self.p_uniform)
        for number in range(len(grid) - 1, -1, -1):
            time, after = grid[number], grid[max(number - 1, 0)]
            chances = known_tokens(state.forward(time), state.mask_id)
            state.look(chances)
            if self.rule == "mdlm":
                write_mask_step(state, chances, time, after, last=number == 0)
            else:
                both = (mixing(one, share, state.model.vocabulary, state.mask_id) for one in (time, after))
                weights = cut(posterior(chances, state.tokens, *both), self.min_p)
                state.write(draw(state, weights), ~state.canvas.given & state.canvas.real)
            state.end_step()


def mixing(time: Tensor, share: float, vocabulary: int, mask_id: int) -> Mixing:
    """How much of a token is left at a time, and the chances [vocab] of what noise has put in its place."""
    share = max(LEAST_UNIFORM, share)
    uniform = (time * (1 - time)).sqrt() * 2 * share / (1 - share)
    whole = 1 + uniform
    noise = torch.full((vocabulary,), float(uniform / whole / (vocabulary - 1)))
    noise[mask_id] = time / whole
    return (1 - time) / whole, noise


def posterior(chances: Tensor, tokens: Tensor, now: Mixing, after: Mixing) -> Tensor:
    """Chances [batch, position, vocab] of each position's token after a reverse step, given the one that stands there."""
    (kept, noise), (kept_after, noise_after) = now, after
    noise, noise_after = noise.to(chances), noise_after.to(chances)
    ratio, here = kept / kept_after, tokens[..., None]
    marginal = kept * chances.gather(-1, here) + noise[here]
    forward = (noise[here] - ratio * noise_after[here]).expand_as(chances)
    forward = forward.scatter_add(-1, here, ratio.to(chances).expand(here.shape))
    return (kept_after * chances + noise_after) * forward / marginal


def write_mask_step(state: NoisyCanvas, chances: Tensor, time: Tensor, after: Tensor, last: bool) -> None:
    """Mask noise alone: a mask stays one, or takes a token for good."""
    if last:
        state.fill(chances.argmax(-1))
        return
    now, then = (1 - MDLM_NOISE) * time, (1 - MDLM_NOISE) * after
    weights = reverse_weights("ddpm_cache", chances, now, then, state.mask_id)
    state.fill(draw(state, cut(weights / now, state.settings.min_p)))


def cut(weights: Tensor, least: float) -> Tensor:
    """Without chances below `least`, normalised."""
    if least > 0:
        weights = weights.masked_fill(weights < least, 0.0)
        weights = weights / weights.sum(-1, keepdim=True)
    return weights


def draw(state: NoisyCanvas, chances: Tensor) -> Tensor:
    """One uniform number per position against the sums of chances so far, [batch, position]."""
    sums = chances.cumsum(-1)
    sums[..., -1] = 1.0001
    uniform = state.draws.uniform(chances.shape[:2]).to(chances.device)
    return (sums > uniform[..., None]).int().argmax(-1)


# ---- self-correction


@sampler("gidd_correction")
class GIDDCorrection(NoisyDecode):
    """GIDD's self-correction of a finished text: the last `length` tokens of the prompt, one change per forward.

    It ends when nothing changes, or when the share of tokens that the model itself would write has not risen for more than
    `patience` steps (early_stop).
    """

    layout: ClassVar[Layout] = "text"
    unused: ClassVar[tuple[str, ...]] = ("block",)

    length: Count
    steps: Count | None = 128
    temperature: NonNegative = 0.1
    _: KW_ONLY
    time: Share = 0.01
    early_stop: Truth = True
    patience: FromZero = 32

    @property
    def answer_length(self) -> int:
        return 0

    def check(self) -> None:
        super().check()
        if self.temperature == 0:
            raise DecodeError("gidd_correction draws what it changes; give a temperature above 0, such as 0.1.")

    def write(self, state: NoisyCanvas) -> None:
        rows = state.canvas.batch
        if rows > 1 and state.run.on_step is not None:
            raise PromptError(f"Expected one text to correct at a time, got {rows}; correct them in turn.")
        for row in range(rows):
            correct_row(state, row)


def correct_row(state: NoisyCanvas, row: int) -> None:
    """Texts are corrected one after the other, as in the authors' code; its first forward is used for nothing."""
    settings, time = state.settings, torch.tensor(state.settings.time)
    state.forward(time)
    state.end_step()
    best, waited = 0.0, 0
    for _ in range(settings.steps):
        logits = state.forward(time)[row].float()
        logits[:, state.mask_id] = -torch.inf
        chances = (logits / settings.temperature).softmax(-1)
        state.look(logits.softmax(-1)[None].expand(state.canvas.batch, -1, -1))
        tokens = correct_one(state, row, chances)
        agreed = float((tokens[row] == logits.argmax(-1)).float().mean())
        waited = 0 if agreed > best else waited + 1
        best = max(best, agreed)
        stops = settings.early_stop and waited > settings.patience
        if stops or torch.equal(tokens, state.tokens):
            state.end_step()
            return
        state.write(tokens, torch.ones_like(tokens, dtype=torch.bool))
        state.end_step()


def correct_one(state: NoisyCanvas, row: int, chances: Tensor) -> Tensor:
    """All tokens [batch, position], one of this row replaced by what was drawn with the largest chance."""
    drawn = draw(state, chances[None])[0]
    scores = chances.gather(-1, drawn[:, None])[:, 0]
    scores = scores * (drawn != state.tokens[row]) * ~state.canvas.given[row]
    place = scores.topk(1).indices  # ties fall as in the authors' code, which argmax would break otherwise
    tokens = state.tokens.clone()
    tokens[row, place] = torch.where(scores[place] > 0, drawn[place], tokens[row, place])
    return tokens
