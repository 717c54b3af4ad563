"""Forwards of block-causal decoders: up to the end of the block under a block mask, or the block alone over a cache.

A block sees itself and the blocks before it, and those do not change any more: keeping their keys and values is exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.models.base import Model
from sinkscope.models.blocks import block_mask, counted, reordered_mask, without_padding


class BlockForwards:
    """Hidden states of a window of the canvas; with `cached`, what lies before the window comes from the cache."""

    def __init__(self, model: Model, size: int, cached: bool, shift: bool) -> None:
        self.model, self.size, self.cached, self.shift = model, size, cached, shift
        self.cache: DynamicCache | None = DynamicCache() if cached else None
        self.kept = 0  # columns in the cache
        self.stored: Tensor | None = None  # [batch, window, width]: hidden states of the last forward that filled it

    @property
    def last(self) -> Tensor | None:
        """[batch, 1, width]: hidden state of the last column in the cache."""
        return None if self.stored is None else self.stored[:, -1:]

    def cut(self, columns: int) -> None:
        """Forget all but the first columns of the cache."""
        if self.cache is not None and columns < self.kept:
            self.cache.crop(columns - self.kept)
        self.kept = columns

    def window(self, span: tuple[int, int], columns: int) -> tuple[int, int]:
        """Which columns of the canvas the next forward will take as queries."""
        return (span[0] if self.cached else 0), span[1]

    def visible(self, tokens: Tensor, real: Tensor | None, window: tuple[int, int], keep: bool) -> Tensor | None:
        """Which keys up to the window's end each query in it sees, bool [batch | 1, 1, query, key]; None: all of them."""
        return block_mask(self.size, *window, real, tokens.device)

    def __call__(self, tokens: Tensor, real: Tensor | None, window: tuple[int, int], keep: bool) -> Tensor:
        """tokens [batch, position] → hidden [batch, window, width]; keep: its keys and values stay in the cache.

        For a shifted family the hidden state before the window is put in front: it predicts the window's first token.
        """
        start, stop = window
        positions = counted(real) if real is not None else torch.arange(stop, device=tokens.device).unsqueeze(0)
        base: Any = self.model.module.base_model
        output = base(
            tokens[:, start:stop], attention_mask=self.visible(tokens, real, window, keep),
            position_ids=positions[:, start:stop].expand(len(tokens), -1), past_key_values=self.cache,
            use_cache=self.cached, **self.model.direction(),
        )  # fmt: skip
        hidden: Tensor = output.last_hidden_state
        if keep:
            self.kept, self.stored = stop, hidden
        elif self.cache is not None:
            self.cache.crop(start - stop)
            if self.shift and self.last is not None:
                hidden = torch.cat([self.last, hidden], dim=1)
        return hidden


class TextForwards(BlockForwards):
    """Nemotron: text that is finished is read causally (or each piece at once), a block at work sees all that is there."""

    def __init__(self, model: Model, size: int, causal_context: bool, cached: bool = True) -> None:
        super().__init__(model, size, cached, shift=False)
        self.causal_context, self.begin = causal_context, 0

    def window(self, span: tuple[int, int], columns: int) -> tuple[int, int]:
        self.begin = span[0]
        return super().window(span, columns)

    def visible(self, tokens: Tensor, real: Tensor | None, window: tuple[int, int], keep: bool) -> Tensor | None:
        if keep or self.cached:  # blocks of one position are causal attention
            return block_mask(1 if keep and self.causal_context else window[1], *window, real, tokens.device)
        causal = torch.ones(window[1], window[1], dtype=torch.bool, device=tokens.device).tril()
        causal[self.begin :] = True  # the block at work; without a cache the text before it is read again
        return causal[None, None] if real is None else without_padding(causal[None, None], real[:, : window[1]], 0)


class ReorderedForwards(BlockForwards):
    """WeDLM: what each position sees follows from which tokens are known."""

    def visible(self, tokens: Tensor, real: Tensor | None, window: tuple[int, int], keep: bool) -> Tensor | None:
        there = None if real is None else real[:, : window[1]]
        return reordered_mask(tokens[:, : window[1]].ne(self.model.require_mask()), there)
