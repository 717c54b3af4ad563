"""How much is known around a column: the certainty density of d2Cache, which its sampler and its cache share."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Canvas


def certainty_density(canvas: Canvas, sigma: float) -> Tensor:
    """How much is known around each column, float32 [batch, column], 0 outside the answer; between 0 and 1.

    Everything before the answer counts as known, and everything behind it as soon as its last column is.
    """
    start, length = canvas.answers[0], canvas.length
    known = ~canvas.masked_positions()[:, start : start + length]
    left = torch.ones_like(known)
    right = known[:, -1:].expand_as(known)
    around = torch.cat([left, known, right], 1).float()  # the columns from −length to 2 × length
    places = torch.arange(-length, 2 * length, device=around.device)
    distance = torch.arange(length, device=around.device)[:, None] - places
    kernel = (-distance.float().square() / (2 * sigma**2)).exp()
    offsets = torch.arange(-3 * length, 3 * length, device=around.device).float()
    total = (-offsets.square() / (2 * sigma**2)).exp().sum()
    density = canvas.tokens.new_zeros(canvas.tokens.shape, dtype=torch.float32)
    density[:, start : start + length] = around @ kernel.T / total
    return density
