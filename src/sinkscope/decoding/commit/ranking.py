"""Ranking candidates, for commit rules; confidence [batch, position] is −∞ where no token may be committed."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.noise import Noise


def most_confident(confidence: Tensor, counts: list[int], padding: Tensor) -> Tensor:
    """The `counts[row]` most confident positions of each row → bool [batch, position].

    Ranked by torch.topk over the row without its padding: ties fall as in the authors' code, and as in the row alone. On the
    CPU, because CUDA's topk breaks them otherwise, and confidences in bfloat16 often tie.
    """
    device, confidence = confidence.device, confidence.cpu()
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    for row, (count, start) in enumerate(zip(counts, padding.tolist(), strict=True)):
        open_positions = int((confidence[row] > -torch.inf).sum())
        if count > 0 and open_positions > 0:
            places = confidence[row, start:].topk(min(count, open_positions)).indices
            chosen[row, start + places] = True
    return chosen.to(device, non_blocking=True)


def drawn_by_confidence(confidence: Tensor, count: int, temperature: float, noise: Noise) -> Tensor:
    """`count` positions per row, drawn without replacement from softmax(confidence / temperature)."""
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    if count > 0:
        weights = (confidence / temperature).softmax(-1)
        chosen.scatter_(1, noise.subset(weights, count).to(chosen.device), True)
    return chosen
