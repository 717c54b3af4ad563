"""MDLM's own samplers: masks become tokens by the chances of a reverse step, forward after forward or from one kept forward."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.decoding.canvas import DecodeRun
from sinkscope.decoding.noisy import NoisyCanvas, NoisyDecode, all_rows, known_tokens
from sinkscope.decoding.settings import sampler
from sinkscope.errors import DecodeError
from sinkscope.models.model import Model
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
        assert self.stride is not None
        return (self.length // self.stride + 1) * (int(1 / self.gap) + 2)

    def generate(
        self, model: Model, prompt: Tensor, attention_mask: Tensor | None, run: DecodeRun
    ) -> tuple[Tensor, list[Tensor]]:
        state = NoisyCanvas.start(model, prompt, self, attention_mask, run)
        if self.predictor == "semi_ar":
            write_windows(state)
        else:
            write_canvas(state)
        return state.finish()


def noise_level(time: Tensor) -> Tensor:
    """The log-linear schedule: sigma at a time from 0 to 1."""
    return -torch.log1p(-(1 - CLEAN) * time)


def write_canvas(state: NoisyCanvas) -> None:
    """Steps over the whole canvas, then what is left of the noise."""
    settings, steps = state.settings, state.settings.steps
    times, gap = torch.linspace(1, LAST, steps + 1), (1 - LAST) / steps
    caches = settings.predictor == "ddpm_cache" and state.model.config.time_input == "none"
    chances: Tensor | None = None
    for time in times[:-1]:
        if chances is None:
            state.end_step()
            chances = read(state, noise_level(time))
        weights = reverse_weights(settings.predictor, chances, time, time - gap, state.mask_id)
        if state.write(state.draws.token(weights), state.masked) or not caches:
            chances = None
    if settings.noise_removal:
        remove_noise(state, times[-1])


def read(state: NoisyCanvas, sigma: Tensor, span: tuple[int, int] | None = None) -> Tensor:
    """Chances [batch, position, vocab] of each token but the mask, by a forward at this noise level."""
    chances = known_tokens(state.forward(all_rows(sigma, state), span), state.mask_id)
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


def remove_noise(state: NoisyCanvas, time: Tensor) -> None:
    """One forward at the last time; every mask takes its likeliest token (analytic: a draw)."""
    state.end_step()
    chances = read(state, noise_level(time))
    analytic = state.settings.predictor == "analytic"
    state.write(state.draws.token(chances) if analytic else chances.argmax(-1), state.masked)


def write_windows(state: NoisyCanvas) -> None:
    """Semi-autoregressive: a window is written whole, and the next one begins a stride later."""
    window, stride = state.settings.window, state.settings.stride
    width = state.canvas.width
    if width < window or (width - window) % stride:
        raise DecodeError(
            f"Expected prompt and length of one window ({window}) and whole strides ({stride}), got {width} columns."
        )
    for start in range(0, width - window + 1, stride):
        write_window(state, (start, start + window))


def write_window(state: NoisyCanvas, span: tuple[int, int]) -> None:
    columns, gap = slice(*span), state.settings.gap
    chances: Tensor | None = None
    for number in range(int(1 / gap) + 1):
        time = torch.tensor(1 - number * gap)
        if chances is None:
            state.end_step()
            chances = read(state, noise_level(time), span)
        weights = reverse_weights("ddpm_cache", chances, time, time - gap, state.mask_id)
        tokens = state.tokens.clone()
        tokens[:, columns] = state.draws.token(weights)
        inside = torch.zeros_like(state.masked)
        inside[:, columns] = state.masked[:, columns]
        if state.write(tokens, inside) or state.model.config.time_input != "none":
            chances = None
    state.end_step()
    tokens = state.tokens.clone()
    tokens[:, columns] = read(state, torch.zeros(()), span).argmax(-1)
    inside = torch.zeros_like(state.masked)
    inside[:, columns] = state.masked[:, columns]
    state.write(tokens, inside)
