"""MDLM's own samplers and SEDD's: masks become tokens by the chances of a reverse step, or by ratios of probabilities."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.decoding.noisy import NoisyCanvas, NoisyDecode, Span, known_tokens
from sinkscope.decoding.settings import sampler
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, Truth

LAST = 1e-5  # the end of the grid of times
CLEAN = 1e-3  # share of clean tokens at time 1
Gap = Annotated[float, Field(strict=True, gt=0, lt=1)]


@sampler("mdlm_dit")
class MDLMDiT(NoisyDecode):
    """Samplers of MDLM's own checkpoints; `Decode.mdlm` is the dllm library's sampler for other models.

    Args:
        predictor: Reverse step: "ddpm" computes the distribution at every step, "ddpm_cache" reuses it while no token
            changes, "analytic" uses the exact posterior, and "semi_ar" writes overlapping windows from left to right.
        noise_removal: Whether mask tokens that are left at the end become their likeliest tokens.
        stride: Number of columns from one window to the next ("semi_ar" only).
        window: Number of columns per window ("semi_ar" only).
        dt: Time between two steps ("semi_ar" only); the default is 1 / `steps`.
    """

    steps: Count | None = 1000
    _: KW_ONLY
    predictor: Literal["ddpm_cache", "ddpm", "analytic", "semi_ar"] = "ddpm_cache"
    noise_removal: Truth = True
    stride: Count | None = None
    window: Count | None = None
    dt: Gap | None = None

    def check(self) -> None:
        super().check()
        slides = self.predictor == "semi_ar"
        given = [name for name in ("stride", "window", "dt") if getattr(self, name) is not None]
        if given and not slides:
            raise DecodeError(f"{given[0]} has no effect with predictor {self.predictor!r}; leave it out.")
        if slides and (self.stride is None or self.window is None or self.stride > self.window):
            raise DecodeError("semi_ar needs window and stride, the stride no larger than the window; give both.")

    @property
    def gap(self) -> float:
        return self.dt or 1 / (self.steps or 1)

    @property
    def most_steps(self) -> int:
        if self.predictor != "semi_ar":
            return super().most_steps
        return (self.length // (self.stride or 1) + 1) * (int(1 / self.gap) + 2)

    def write(self, state: NoisyCanvas) -> None:
        if self.predictor == "semi_ar":
            write_windows(state)
        else:
            write_canvas(state)


def noise_level(time: Tensor) -> Tensor:
    """The log-linear schedule: sigma at a time from 0 to 1."""
    return -torch.log1p(-(1 - CLEAN) * time)


def write_canvas(state: NoisyCanvas) -> None:
    """Steps over the whole canvas, then what is left of the noise."""
    settings, steps = state.settings, state.settings.steps
    times, gap = torch.linspace(1, LAST, steps + 1), (1 - LAST) / steps
    denoise(state, times[:-1], gap, None)
    if not settings.noise_removal:
        return
    state.end_step()
    chances = read(state, noise_level(times[-1]), None)
    state.fill(state.draw(chances) if settings.predictor == "analytic" else chances.argmax(-1))


def write_windows(state: NoisyCanvas) -> None:
    """Semi-autoregressive: a window is written whole, and the next one begins a stride later."""
    window, stride, gap, width = state.settings.window, state.settings.stride, state.settings.gap, state.canvas.width
    if width < window or (width - window) % stride:
        raise DecodeError(
            f"Expected prompt and length of one window ({window}) and whole strides ({stride}), got {width} columns."
        )
    times = torch.tensor([1 - number * gap for number in range(int(1 / gap) + 1)])
    for start in range(0, width - window + 1, stride):
        span = (start, start + window)
        denoise(state, times, gap, span)
        state.end_step()
        state.fill(read(state, torch.zeros(()), span).argmax(-1), span)


def denoise(state: NoisyCanvas, times: Tensor, gap: float, span: Span) -> None:
    """An update at each time, of these columns; a forward where the last one changed something."""
    predictor = state.settings.predictor
    caches = predictor in ("ddpm_cache", "semi_ar") and state.model.config.time_input == "none"
    chances: Tensor | None = None
    for time in times:
        if chances is None:
            state.end_step()
            chances = read(state, noise_level(time), span)
        weights = reverse_weights(predictor, chances, time, time - gap, state.mask_id)
        if state.fill(state.draw(weights), span) or not caches:
            chances = None


def read(state: NoisyCanvas, sigma: Tensor, span: Span) -> Tensor:
    """Chances [batch, position, vocab] of each token but the mask, by a forward at this noise level."""
    chances = known_tokens(state.forward(sigma, span), state.mask_id)
    state.look(chances, span)
    return chances


def reverse_weights(predictor: str, chances: Tensor, time: Tensor, after: Tensor, mask_id: int) -> Tensor:
    """What a mask becomes from one time to the next, in unnormalised chances."""
    if predictor == "analytic":
        return analytic_weights(chances, noise_level(time), noise_level(after), mask_id)
    if predictor == "ddpm":
        time, after = 1 - torch.exp(-noise_level(time)), 1 - torch.exp(-noise_level(after))
    weights = chances * (time - after)
    weights[..., mask_id] = after
    return weights


def analytic_weights(chances: Tensor, sigma: Tensor, after: Tensor, mask_id: int) -> Tensor:
    """The exact posterior between two noise levels."""
    gap = sigma - after
    ratio = 1 / torch.expm1(sigma)
    weights = torch.expm1(gap) * ratio * chances
    weights[..., mask_id] = gap.exp() + (1 - gap.exp()) * (ratio + 1)
    return weights


# ---- SEDD: the model gives ratios of probabilities, from which a mask's next token is drawn


@sampler("sedd")
class SEDD(NoisyDecode):
    """Sampler of SEDD with absorbing noise.

    Args:
        predictor: Reverse step: "analytic" uses the exact posterior of each time interval, "euler" its first-order
            approximation.
        denoise: Whether mask tokens that are left at the end are sampled among all other tokens.
    """

    steps: Count | None = 1024
    _: KW_ONLY
    predictor: Literal["analytic", "euler"] = "analytic"
    denoise: Truth = True

    def write(self, state: NoisyCanvas) -> None:
        assert self.steps is not None
        times, gap = torch.linspace(1, LAST, self.steps + 1), (1 - LAST) / self.steps
        for time in times[:-1]:
            ratios = read_ratios(state, noise_level(time))
            if self.predictor == "euler":
                weights = euler_weights(ratios, time, gap, state.mask_id)
            else:
                weights = staggered(ratios, noise_level(time) - noise_level(time - gap), state.mask_id)
            state.fill(state.draw(weights))
            state.end_step()
        if self.denoise:
            sigma = noise_level(times[-1])
            weights = staggered(read_ratios(state, sigma), sigma, state.mask_id)
            state.fill(state.draw(weights[..., : state.mask_id]))


def read_ratios(state: NoisyCanvas, sigma: Tensor) -> Tensor:
    """[batch, position, vocab]: how much likelier each token is than the one that stands there."""
    scaled = state.model.config.scale_by_sigma
    ratios = log_ratios(state.forward(sigma), state.tokens, sigma, scaled).exp()
    chances = ratios[..., : state.mask_id]
    state.look(chances / chances.sum(-1, keepdim=True))
    return ratios


def log_ratios(logits: Tensor, tokens: Tensor, sigma: Tensor, scaled: bool) -> Tensor:
    """The network's output as log ratios; sigma: [] or [batch]. The token that stands there has ratio 1."""
    if scaled:
        logits = logits - torch.expm1(sigma).log().to(logits).reshape(-1, 1, 1) - math.log(logits.shape[-1] - 1)
    return logits.scatter(-1, tokens[..., None], 0.0)


def staggered(ratios: Tensor, gap: Tensor, mask_id: int) -> Tensor:
    """What a mask becomes when this much noise is taken away, in unnormalised chances."""
    grown = gap.exp()
    weights = ratios * grown * -torch.expm1(-gap)
    weights[..., mask_id] = grown * ratios[..., mask_id] + (1 - grown) * ratios.sum(-1)
    return weights


def euler_weights(ratios: Tensor, time: Tensor, gap: float, mask_id: int) -> Tensor:
    """The same to first order; a mask's own chance may be negative, and is then never drawn."""
    rate = (1 - CLEAN) / (1 - (1 - CLEAN) * time)
    weights = gap * rate * ratios
    weights[..., mask_id] = 0
    weights[..., mask_id] = 1 - weights.sum(-1)
    return weights
