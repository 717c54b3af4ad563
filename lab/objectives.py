"""Which positions are hidden, which tokens are to be predicted there, and with what weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lab.recipe import Objective


@dataclass(frozen=True)
class Rows:
    """Sequences of one chunk, filled up with end-of-text to one length; all [row, position] or [row]."""

    ids: Tensor  # int64 [row, position]
    prompt: Tensor  # int64 [row]: tokens of the prompt
    answer: Tensor  # int64 [row]: end of the answer, its end-of-turn token included

    def __len__(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True)
class Targets:
    """What goes in, and what is to come out where: `weight` is 0 where nothing is asked."""

    ids: Tensor  # [row, position] input
    labels: Tensor  # [row, position] the true token at this position
    weight: Tensor  # [row, position] fp32


def next_token(rows: Rows, objective: Objective) -> Targets:
    """Every token of prompt and answer from those before it; end-of-text after the answer is not asked for."""
    position = torch.arange(rows.ids.shape[1])[None, :]
    weight = torch.where(position < rows.prompt[:, None], objective.prompt, 1.0)
    weight = torch.where(position < rows.answer[:, None], weight, 0.0)
    weight[:, 0] = 0.0
    return Targets(rows.ids, rows.ids, weight / weight.sum(1, keepdim=True))


def even_ratios(count: int, rng: np.random.Generator, t_min: float) -> np.ndarray:
    """Mask ratios spread evenly over (t_min, 1], in random order: one in each of `count` equal parts."""
    ratios = (rng.permutation(count) + rng.random(count)) / count
    spread: np.ndarray = t_min + (1 - t_min) * ratios
    return spread


def masked(rows: Rows, ratios: np.ndarray, objective: Objective, mask_id: int, rng: np.random.Generator) -> Targets:
    """Hide a share t of each row's canvas (or of the whole row), exactly counted; loss is the mean over the hidden.

    With an exact count k = t·n, the mean over hidden tokens is the 1/t-weighted sum divided by n.
    """
    length = rows.ids.shape[1]
    hidden = np.zeros((len(rows), length), dtype=bool)
    weight = np.zeros((len(rows), length), dtype=np.float32)
    prompts, answers = rows.prompt.numpy(), rows.answer.numpy()
    for row, ratio in enumerate(ratios):
        start, end = int(prompts[row]), length
        style = rng.random()
        if style < objective.whole:
            start = 0
        elif style < objective.whole + objective.blockwise:
            # Block decoding's own states: blocks left of the active one known, right of it masked.
            active = start + objective.block * int(rng.integers(0, -(-(int(answers[row]) - start) // objective.block)))
            hidden[row, active + objective.block :] = True
            start, end = active, min(active + objective.block, length)
        count = max(1, round(float(ratio) * (end - start)))
        hidden[row, start + rng.permutation(end - start)[:count]] = True
        weight[row, start:end] = 1.0
    weight *= hidden
    weight *= np.where(np.arange(length)[None, :] >= answers[:, None], np.float32(objective.padding), np.float32(1.0))
    weight /= np.maximum(weight.sum(1, keepdims=True), 1.0)
    ids = torch.where(torch.from_numpy(hidden), mask_id, rows.ids)
    return Targets(ids, rows.ids, torch.from_numpy(weight))


def loss_sum(module: nn.Module, targets: Targets, shift: bool, attention_mask: Tensor | None = None) -> Tensor:
    """Weighted cross-entropy, summed; the head is applied only where something is asked."""
    rows, positions = targets.weight.nonzero(as_tuple=True)
    hidden = module.model(targets.ids, attention_mask=attention_mask, use_cache=False).last_hidden_state  # type: ignore[operator]
    at = positions - 1 if shift else positions
    if shift:
        keep = at >= 0
        rows, positions, at = rows[keep], positions[keep], at[keep]
    logits = module.lm_head(hidden[rows, at])  # type: ignore[operator]
    entropy = nn.functional.cross_entropy(logits.float(), targets.labels[rows, positions], reduction="none")
    return (entropy * targets.weight[rows, positions]).sum()
