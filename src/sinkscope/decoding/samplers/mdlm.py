"""MDLM's own samplers: masks become tokens by the chances of a reverse step, forward after forward or from one kept forward."""

from __future__ import annotations

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
    """MDLM's samplers for its own checkpoints (Decode.mdlm is dllm's, for others).

    predictor: "ddpm_cache" keeps the last distribution while no token changes, "ddpm" does not, "analytic" takes the exact
    posterior. "semi_ar" writes windows of `window` columns, each `stride` behind the one before; dt is its gap of times
    (1 / steps unless given). noise_removal: masks that are left at the end become the likeliest tokens.
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
    state.fill(state.draws.token(chances) if settings.predictor == "analytic" else chances.argmax(-1))


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
        if state.fill(state.draws.token(weights), span) or not caches:
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
