"""A generation once more without any of sinkscope's attention or decoding: eager attention, a loop, an argmax.

The weights of every call go through a plain function, which sees the untouched maps of the last forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import sinkscope as sk

NAME = "by_hand"
# layer, weights [head, query, key], the untouched weights of the last forward of all layers (empty at the first) → weights
Rule = Callable[[int, Tensor, dict[int, Tensor]], Tensor]


@dataclass
class ByHand:
    """One generation of one row; every forward computes all rows."""

    model: sk.Model
    rule: Rule
    both_ways: int = 0  # so many tokens at the start are seen by all rows, of a causal model too
    maps: dict[int, Tensor] = field(default_factory=dict)
    before: dict[int, Tensor] = field(default_factory=dict)
    removed: float = 0.0  # attention taken away from the second forward on …
    rows: float = 0.0  # … of so many rows, over layers and heads

    def attention(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
                  scaling: float | None = None, **_: Any) -> tuple[Tensor, None]:  # fmt: skip
        assert (mask is None or self.both_ways) and len(query) == 1 and query.shape[2] == key.shape[2]
        share = query.shape[1] // key.shape[1]
        key, value = (part[0].repeat_interleave(share, dim=0) for part in (key, value))
        scores = query[0] @ key.mT * scaling  # [head, query, key]
        if self.model.causal:
            size = scores.shape[-1]
            later = torch.ones(size, size, dtype=torch.bool).triu(1)
            later[:, : self.both_ways] = False
            scores = scores.masked_fill(later, -torch.inf)
        weights = scores.softmax(-1)
        self.maps[module.layer_idx] = weights
        used = self.rule(module.layer_idx, weights.clone(), self.before)
        if self.before:
            self.removed += float((weights - used).clamp(min=0).sum())
            self.rows += weights.shape[0] * weights.shape[1]
        return (used @ value)[None].transpose(1, 2).contiguous(), None

    def logits(self, ids: Tensor) -> Tensor:
        AttentionInterface.register(NAME, self.attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        usual, self.model.config._attn_implementation = self.model.config._attn_implementation, NAME
        try:
            found = self.model.logits(ids)[0]
        finally:
            self.model.config._attn_implementation = usual
        self.before, self.maps = self.maps, {}
        return found

    def generate(self, ids: Tensor, length: int) -> list[int]:
        """The answer: left to right, or the surest open position first over one block, one token per step."""
        model, prompt = self.model, ids.shape[1]
        if model.causal:
            for _ in range(length):
                ids = torch.cat([ids, self.logits(ids)[-1].argmax().view(1, 1)], 1)
                if int(ids[0, -1]) in model.eos_ids:
                    break
            return ids[0, prompt:].tolist()
        assert model.mask_id is not None
        ids = torch.cat([ids, torch.full((1, length), model.mask_id)], 1)
        for _ in range(length):
            logits = self.logits(ids)
            logits = logits.roll(1, 0) if model.shift else logits
            sure, token = logits.softmax(-1).max(-1)
            place = int(sure.masked_fill(ids[0] != model.mask_id, -1.0).argmax())
            ids[0, place] = token[place]
        return ids[0, prompt:].tolist()


def hide(weights: Tensor, head: int, keys: list[int]) -> None:
    """Keys of a head taken away, in place; what a row has left is scaled to 1, and a row without keys stays at 0."""
    weights[head, :, keys] = 0.0
    weights[head] = (weights[head] / weights[head].sum(-1, keepdim=True)).nan_to_num(0.0)


def top_key(columns: Tensor) -> int:
    """columns [query, key] → the key with the largest sum, the first of equals."""
    return int(columns.sum(0).numpy().argmax())


def strong(weights: Tensor, key: int, causal: bool, limit: float = 0.3) -> bool:
    """Whether a key draws more than `limit` of each row that may look at it; weights [query, key] of one head."""
    rows = len(weights) - (key if causal else 0)
    return float(weights[:, key].sum()) / rows > limit
