"""SEDD's samplers: the model gives ratios of probabilities, from which a mask's next token is drawn."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Literal

import torch
from torch import Tensor

from sinkscope.decoding.noisy import NoisyCanvas, NoisyDecode
from sinkscope.decoding.samplers.mdlm import CLEAN, LAST, noise_level
from sinkscope.decoding.settings import sampler
from sinkscope.validation import Count, Truth


@sampler("sedd")
class SEDD(NoisyDecode):
    """SEDD with absorbing noise: predictor "analytic" takes the exact posterior of each gap, "euler" its first order.

    denoise: masks that are left at the end are drawn among all tokens but the mask.
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
            state.fill(state.draws.token(weights))
            state.end_step()
        if self.denoise:
            sigma = noise_level(times[-1])
            weights = staggered(read_ratios(state, sigma), sigma, state.mask_id)
            state.fill(state.draws.token(weights[..., : state.mask_id]))


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
