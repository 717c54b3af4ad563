"""GIDD's samplers: a reverse step may change any token, and self-correction a finished text; GIDD v2 writes blocks of noise."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.attention.forward import forward_context
from sinkscope.decoding.canvas import LAYOUTS, Canvas
from sinkscope.decoding.choose import truncated
from sinkscope.decoding.noisy import NoisyCanvas, NoisyDecode, known_tokens
from sinkscope.decoding.samplers.mdlm import reverse_weights
from sinkscope.decoding.settings import Layout, TokenId, sampler
from sinkscope.errors import DecodeError, PromptError
from sinkscope.models.model import Model
from sinkscope.validation import Count, FromZero, NonNegative, Number, Share, Truth

LEAST_UNIFORM = math.exp(-20)
MDLM_NOISE = 1e-4
Mixing = tuple[Tensor, Tensor]  # how much of a token is left, and the chances [vocab] of what stands in its place
Below1 = Annotated[float, Field(strict=True, ge=0, lt=1)]


@sampler("gidd")
class GIDD(NoisyDecode):
    """Sampler of GIDD: reverse steps from mask tokens, in which decoded tokens may change again if the noise has
    uniform tokens.

    A prompt is kept, which the authors' code does not offer.

    Args:
        p_uniform: Fraction of uniform tokens in the noise (0 to below 1); the default is the checkpoint's.
        min_p: Probability below which a token is not sampled.
        rule: Reverse step: "gidd", or "mdlm", the authors' sampler for pure mask noise.
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
    uniform = state.noise.whole(chances.shape[:2], torch.float32).to(chances.device)
    return (sums > uniform[..., None]).int().argmax(-1)


# ---- self-correction


@sampler("gidd_correction")
class GIDDCorrection(NoisyDecode):
    """Self-correction of GIDD: revise the last `length` tokens of the prompt, one token per forward.

    The sampler ends when nothing changes or when `early_stop` ends it.

    Args:
        length: Number of tokens at the end of the prompt that may change.
        steps: Largest number of changes.
        temperature: Sampling temperature, above 0.
        time: Noise time (0 to 1) that the model is conditioned on.
        early_stop: True to end when the fraction of tokens that agree with the model's likeliest token has not risen
            for more than `patience` steps.
        patience: Number of steps without a rise that are tolerated.
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


# ---- GIDD v2: each step of a block reads all that is left of the canvas


class BlockCanvas(NoisyCanvas):
    """Which positions are written is known by name: noise may look like text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.written = self.canvas.given.clone()  # bool [batch, position]
        self.cache: Any = None

    @property
    def masked(self) -> Tensor:
        return ~self.written

    @property
    def noise_type(self) -> float:
        own = self.settings.noise_type
        return float(self.model.config.noise_type if own is None else own)

    @property
    def eos_id(self) -> int | None:
        return self.model.eos_id if self.settings.eos_id is None else int(self.settings.eos_id)

    def noise_at(self, signal: Tensor) -> Tensor:
        """Chances [vocab] of what noise puts in a token's place."""
        words = self.model.vocabulary
        uniform = torch.sigmoid(signal + self.noise_type)
        chances = torch.full((words,), float(uniform / (words - 1)))
        chances[self.mask_id] = 1 - uniform
        return chances

    def read_prefix(self, stop: int) -> None:
        """Everything before a block, which sees itself only, into a new cache."""
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.model.config)
        if stop == 0:
            return
        self.run.forwards += 1
        with forward_context(self.describe((0, stop), kind="prefill")):
            self.run_model(self.tokens[:, :stop], past_key_values=self.cache)

    def read_block(self, block: tuple[int, int]) -> Tensor:
        """Logits [batch, column, vocab] of a block, in a forward over all that is left of the canvas."""
        start, width = block[0], self.canvas.width
        self.begin((start, width))
        self.span = block
        with forward_context(self.describe((start, width))):
            logits = self.run_model(self.tokens[:, start:], past_key_values=self.cache)
        self.cache.crop(start - width)
        return self.barred(logits[:, : block[1] - start].float(), start)

    def barred(self, logits: Tensor, start: int) -> Tensor:
        """Without the mask, and without end-of-text where the answer is too short for it."""
        logits[..., self.mask_id] = -torch.inf
        most = self.canvas.answers[0] + self.settings.min_length - start
        if self.eos_id is not None and most > 0:
            logits[:, :most, self.eos_id] = -torch.inf
        return logits

    def is_ended(self) -> bool:
        """Whether every row has end-of-text somewhere, in the noise that is left too, as the authors' code asks."""
        return self.eos_id is not None and bool((self.tokens == self.eos_id).any(1).all())

    def finish(self) -> tuple[Tensor, list[Tensor]]:
        """The text up to its length, padded from the first end-of-text on."""
        whole, _ = super().finish()
        start = self.canvas.answers[0]
        tokens = whole[:, : start + self.settings.length]
        if self.eos_id is not None:
            ends = tokens == self.eos_id
            behind = (ends.cumsum(1) > 0) & ~ends[:, :1]
            tokens = tokens.masked_fill(behind, self.model.config.pad_token_id)
        return tokens, list(tokens[:, start:])


@sampler("gidd_v2")
class GIDDv2(NoisyDecode):
    """Samplers of GIDD v2: blocks after the prompt, in a canvas of noise.

    Args:
        method: Reverse step: "adaptive" replaces the `tokens_per_step` positions that would gain most, "ancestral"
            samples every position. Mask noise at temperature 0 needs "adaptive".
        tokens_per_step: Number of positions replaced per step ("adaptive" only).
        schedule: Noise schedule over the steps.
        noise_type: Mixture of the noise, from -1000 (mask tokens only) to 1000 (uniform tokens only); the default is
            the checkpoint's.
        min_length: Number of tokens before which end-of-text is not written.
        canvas: Number of columns of the canvas, prompt included; the default is the checkpoint's context.
    """

    layout: ClassVar[Layout] = "drawn"
    state_class: ClassVar[type[NoisyCanvas]] = BlockCanvas
    pads: ClassVar[bool] = False
    unused: ClassVar[tuple[str, ...]] = ()

    length: Count
    block: Count | None = 128
    steps: Count | None = 256
    temperature: NonNegative = 0.0
    _: KW_ONLY
    method: Literal["adaptive", "ancestral"] = "adaptive"
    top_k: Count | None = None
    top_p: Share | None = None
    tokens_per_step: Count = 1
    schedule: Literal["cosine", "linear"] = "cosine"
    noise_type: Number | None = None
    min_length: FromZero = 0
    canvas: Count | None = None
    eos_id: TokenId | None = None

    @property
    def most_steps(self) -> int:
        return self.blocks * (self.steps or 1)

    def write(self, state: BlockCanvas) -> None:
        if self.temperature == 0 and self.method == "ancestral" and state.noise_type < 0:
            raise DecodeError("Temperature 0 leaves an ancestral step of mask noise nothing to draw; use adaptive.")
        if self.noise == "per_row" and state.canvas.batch > 1:
            raise DecodeError("Rows of a batch share their draws; decode prompts in turn (in a study: chunk: 1).")
        start, width, size = state.canvas.answers[0], state.canvas.width, self.block or state.canvas.width
        # The layout has drawn the same canvas: the stream goes on behind it.
        draw_prior(state.model, state.tokens[:, :start], self, state.noise.generators[0])
        for first in range(start, min(start + self.length, width), size):
            write_block(state, (first, min(first + size, width)))
            if state.is_ended():
                break


def draw_prior(model: Model, prompt: Tensor, settings: Any, generator: torch.Generator) -> Tensor:
    """A canvas of noise [batch, canvas]: masks, and random tokens where the noise has some."""
    config = model.config
    width = settings.canvas or config.max_position_embeddings
    if prompt.shape[1] + settings.length > width:
        raise DecodeError(
            f"Expected prompt and length within the canvas of {width}, got {prompt.shape[1]} and {settings.length}."
        )
    kind = config.noise_type if settings.noise_type is None else settings.noise_type
    chance = torch.rand(len(prompt), width, generator=generator)
    tokens = torch.randint(0, config.vocab_size, (len(prompt), width), generator=generator)
    uniform = chance < torch.sigmoid(torch.tensor(float(config.min_log_snr + kind)))
    return torch.where(uniform, tokens, config.mask_token_id)


def draw_layout(model: Model, prompt: Tensor, real: Tensor, settings: Any, mask_id: int) -> Canvas:
    """The prompt written over a canvas of noise."""
    tokens = draw_prior(model, prompt, settings, torch.Generator().manual_seed(settings.seed))
    tokens[:, : prompt.shape[1]] = prompt
    given = (torch.arange(tokens.shape[1]) < prompt.shape[1]).expand_as(tokens)
    return Canvas(tokens, torch.ones_like(given), given, mask_id, [prompt.shape[1]] * len(prompt), settings.length)


LAYOUTS["drawn"] = draw_layout


def signal_at(state: BlockCanvas, time: float) -> Tensor:
    """Log signal-to-noise ratio at a time from 1 (noise) to 0 (text)."""
    config = state.model.config
    least, most = torch.tensor(float(config.min_log_snr)), torch.tensor(float(config.max_log_snr))
    share = 0.5 + 0.5 * math.cos(math.pi * time) if state.settings.schedule == "cosine" else 1 - time
    kept = least.sigmoid() + (most.sigmoid() - least.sigmoid()) * share
    return torch.logit(kept).clamp(least, most)


def write_block(state: BlockCanvas, block: tuple[int, int]) -> None:
    settings, steps, columns = state.settings, state.settings.steps, slice(*block)
    state.read_prefix(block[0])
    logits: Tensor | None = None
    for number in range(steps):
        if logits is None:
            state.end_step()
            logits = state.read_block(block)
            state.look(logits.softmax(-1), block)
        now, after = (signal_at(state, 1 - (number + place) / steps) for place in (0, 1))
        step = adaptive_step if settings.method == "adaptive" else ancestral_step
        tokens = state.tokens.clone()
        tokens[:, columns] = step(state, logits, tokens[:, columns], now, after)
        changed = tokens != state.tokens
        state.written = state.written | changed
        if state.write(tokens, changed):
            logits = None
    state.written[:, columns] = True  # what was noise by chance is text now
    state.end_step()


def draw_tokens(state: BlockCanvas, chances: Tensor) -> Tensor:
    """[batch, position, vocab] → ids [batch, position], drawn as the authors' code draws them."""
    flat = chances.flatten(0, 1).cpu()
    return torch.multinomial(flat, 1, generator=state.noise.generators[0]).view(chances.shape[:2]).to(chances.device)


def adaptive_step(state: BlockCanvas, logits: Tensor, tokens: Tensor, now: Tensor, after: Tensor) -> Tensor:
    """The positions that would gain most take a new token; noise that masks leaves written tokens alone."""
    settings, chances = state.settings, logits.softmax(-1)
    gain = chances.amax(-1) - chances.gather(-1, tokens[..., None])[..., 0]
    scores = gain * state.noise_at(now).to(gain)[tokens]
    drawn = draw_tokens(state, filtered(logits, settings))
    if settings.temperature == 0:
        drawn = logits.argmax(-1)
    places = scores.topk(min(settings.tokens_per_step, tokens.shape[1])).indices
    return tokens.scatter(-1, places, drawn.gather(-1, places))


def ancestral_step(state: BlockCanvas, logits: Tensor, tokens: Tensor, now: Tensor, after: Tensor) -> Tensor:
    """Every position is drawn from the reverse step between two noise levels."""
    levels = ((one.sigmoid(), one.sigmoid().neg().add(1) * state.noise_at(one)) for one in (now, after))
    return draw_tokens(state, posterior(filtered(logits, state.settings), tokens, *levels))


def filtered(logits: Tensor, settings: Any) -> Tensor:
    """Chances under temperature, then the top_k likeliest, then those whose sum reaches top_p."""
    if settings.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits)
    flat = truncated(logits.flatten(0, 1) / settings.temperature, None, settings.top_k)
    return truncated(flat, settings.top_p, None).softmax(-1).view(logits.shape)
