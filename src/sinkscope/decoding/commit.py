"""Commit rules: which of the candidates become tokens now. confidence [batch, position] is −∞ where none may."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.noise import Noise


def most_confident(confidence: Tensor, counts: list[int], padding: Tensor) -> Tensor:
    """The `counts[row]` most confident positions of each row → bool [batch, position].

    Ranked by torch.topk over the row without its padding: ties fall as in the authors' code, and as in the row alone.
    """
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    for row, (count, start) in enumerate(zip(counts, padding.tolist(), strict=True)):
        open_positions = int((confidence[row] > -torch.inf).sum())
        if count > 0 and open_positions > 0:
            places = confidence[row, start:].topk(min(count, open_positions)).indices
            chosen[row, start + places] = True
    return chosen


def quota(masks: int, steps: int, step: int) -> int:
    """How many of a block's `masks` step number `step` commits: an even share, the remainder to the first steps."""
    return masks // steps + (step < masks % steps)


def above_threshold(confidence: Tensor, threshold: float) -> Tensor:
    """Everything at or above the threshold, and in every open row at least the best."""
    chosen = confidence >= threshold
    best = confidence.argmax(-1)
    rows = (confidence.max(-1).values > -torch.inf).nonzero().squeeze(-1)
    chosen[rows, best[rows]] = True
    return chosen


def factor_counts(confidence: Tensor, factor: float) -> list[int]:
    """Fast-dLLM's factor rule: rank r is accepted while its confidence is at least 1 − factor / (r + 1); rank 1 always.

    As in the authors' code, if the first rank that fails is the last candidate, it is taken too.
    """
    counts: list[int] = []
    for row in confidence:
        ordered = row[row > -torch.inf].sort(descending=True).values.tolist()
        accepted = min(1, len(ordered))
        while accepted < len(ordered) and ordered[accepted] >= 1 - factor / (accepted + 2):
            accepted += 1
        counts.append(len(ordered) if accepted == len(ordered) - 1 else accepted)
    return counts


def dream_share(times: Tensor, step: int) -> Tensor:
    """Share of the masks that Dream resolves at this step, in float32: float64 gives other counts."""
    return 1 - times[step + 1] / times[step]


def dream_count(open_masks: Tensor, times: Tensor, step: int) -> int:
    """open_masks [batch] → how many positions a row commits; the last step takes all."""
    mean = open_masks.sum() / open_masks.shape[0]
    last = step == len(times) - 2
    return int(mean) if last else int(mean * dream_share(times, step))


def drawn_by_confidence(confidence: Tensor, count: int, temperature: float, noise: Noise) -> Tensor:
    """`count` positions a row, drawn without replacement from softmax(confidence / temperature)."""
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    if count > 0:
        weights = (confidence / temperature).softmax(-1).cpu()
        chosen.scatter_(1, noise.subset(weights, count).to(chosen.device), True)
    return chosen
