"""Greedy answers of a module in training, in its own variant: a plain decoder for the accuracy curve only.

Checkpoints are evaluated through the package's own loaders and decoders; this one exists because a module in
training has no checkpoint yet, and its variants (extra slot, sink token) fit no checkpoint format.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lab.build import forward_inputs
from lab.data import Coder
from lab.recipe import Recipe
from sinkscope.tasks import problems


@torch.no_grad()
def quick_accuracy(module: nn.Module, recipe: Recipe, coder: Coder, mask_id: int, n: int = 16) -> dict[str, float]:
    """Share of `n` validation problems per kind that are solved."""
    found: dict[str, float] = {}
    for kind in recipe.data.kinds:
        level = recipe.data.difficulty.get(kind)
        asked = list(problems(kind, n=n, split="validation", seed=11, difficulty=level))
        texts = answers(module, recipe, coder, mask_id, [p.prompt for p in asked])
        found[kind] = sum(p.check(text) for p, text in zip(asked, texts, strict=True)) / n
    return found


@torch.no_grad()
def answers(
    module: nn.Module, recipe: Recipe, coder: Coder, mask_id: int, prompts: Sequence[str], length: int = 24
) -> list[str]:
    """Texts in the prompts' order; prompts of equal length go together, so nothing is padded."""
    ids = coder.prompts(prompts)
    groups: dict[int, list[int]] = {}
    for number, row in enumerate(ids):
        groups.setdefault(len(row), []).append(number)
    texts = [""] * len(ids)
    for numbers in groups.values():
        batch = torch.tensor([ids[n] for n in numbers])
        solve = _next_tokens if recipe.causal else _denoise
        done = solve(module, recipe, coder, mask_id, batch, length)
        for number, row in zip(numbers, done.tolist(), strict=True):
            texts[number] = str(coder.tokenizer.decode(row, skip_special_tokens=False))
    return texts


def _logits(module: nn.Module, recipe: Recipe, coder: Coder, ids: Tensor) -> Tensor:
    shown, seen = forward_inputs(recipe, len(coder.tokenizer), ids)
    logits: Tensor = module(shown, attention_mask=seen, use_cache=False).logits
    return logits[:, shown.shape[1] - ids.shape[1] :, : len(coder.tokenizer)]


def _next_tokens(module: nn.Module, recipe: Recipe, coder: Coder, _: int, ids: Tensor, length: int) -> Tensor:
    start = ids.shape[1]
    for _step in range(length):
        ids = torch.cat([ids, _logits(module, recipe, coder, ids)[:, -1:].argmax(-1)], 1)
        if bool((ids[:, start:] == coder.end).any(1).all()):
            break
    return ids[:, start:]


def _denoise(module: nn.Module, recipe: Recipe, coder: Coder, mask_id: int, ids: Tensor, length: int) -> Tensor:
    start, block = ids.shape[1], recipe.objective.block
    canvas = torch.cat([ids, torch.full((ids.shape[0], length), mask_id)], 1)
    for left in range(start, start + length, block):
        right = min(left + block, start + length)
        for _step in range(right - left):
            logits = _logits(module, recipe, coder, canvas)
            if recipe.shift:
                logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
            logits[..., mask_id] = -torch.inf
            confidence, token = logits[:, left:right].softmax(-1).max(-1)
            confidence = confidence.masked_fill(canvas[:, left:right] != mask_id, -1.0)
            best = confidence.argmax(-1, keepdim=True)
            canvas[:, left:right].scatter_(1, best, token.gather(1, best))
    return canvas[:, start:]
