"""Forwards of a denoising step: over the whole canvas, or over a part of it with keys and values kept from before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.attention.forward import SparseKeys
from sinkscope.attention.patch import padding_row
from sinkscope.decoding.canvas import CacheUse, Canvas, Step
from sinkscope.models.family import block_mask, counted, reordered_mask, without_padding
from sinkscope.models.model import Model


def run_layers(
    model: Model, ids: Tensor, visible: Tensor | None, positions: Tensor, cache: DynamicCache | None
) -> Tensor:
    """ids [batch, position] → hidden states [batch, position, width]; visible: a mask as the module takes it."""
    base: Any = model.module.base_model
    output = base(
        ids, attention_mask=visible, position_ids=positions.expand(len(ids), -1), past_key_values=cache,
        use_cache=cache is not None, **model.direction(),
    )  # fmt: skip
    hidden: Tensor = output.last_hidden_state
    return hidden


class Forwards:
    """Hidden states of the whole canvas at every step."""

    shadow = 0  # masks that are run behind the canvas
    columns: Tensor | None = None  # [batch, n]: single columns that the next forward computes; None: a span
    cached_columns: Callable[[int], SparseKeys | None] | None = None  # what a layer is given of the canvas

    def __init__(self, model: Model, shift: bool | None = None) -> None:
        self.shift = model.shift if shift is None else shift
        self.model = model

    def attach(self, canvas: Canvas, keep: bool) -> None:
        """The canvas that a decoder works on; keep: maps of what is computed are wanted."""

    def window(self, span: tuple[int, int], columns: int) -> tuple[int, int]:
        """Which columns of the canvas the next forward will take as queries."""
        return 0, columns

    def wanted(self, positions: Tensor) -> Tensor:
        """Of these positions [batch, position] those that the last forward predicts; and what a cache policy asks for."""
        return positions

    def draws(self, rows: Tensor, columns: Tensor, width: int) -> tuple[int, Tensor]:
        """How many positions of a row random numbers are drawn for, and where (rows, columns) [n] stand among them."""
        return width + self.shadow, columns

    def note(self, step: Step) -> None:
        """A step was committed."""

    def use(self) -> CacheUse | None:
        """What this generation computed and held under a cache policy."""
        return None

    def __call__(self, tokens: Tensor, real: Tensor | None, span: tuple[int, int], keep: bool = False) -> Tensor:
        """tokens [batch, position] → hidden [batch, window, width]; real: bool like it, None where nothing is padded."""
        return self._run(tokens, real, self._positions(tokens, real), None)

    def visible(self, tokens: Tensor, real: Tensor | None, span: tuple[int, int], keep: bool = False) -> Tensor | None:
        """Which keys each query of the next forward sees, bool [batch | 1, 1, query, key]; None: all that are real."""
        return self.model.family.visible(self.model, tokens, real)

    def _positions(self, canvas: Tensor, real: Tensor | None) -> Tensor:
        """[batch | 1, position]: as the family counts them."""
        places = self.model.positions(real)
        return torch.arange(canvas.shape[1], device=canvas.device).unsqueeze(0) if places is None else places

    def _run(self, ids: Tensor, real: Tensor | None, positions: Tensor, cache: DynamicCache | None) -> Tensor:
        """real: bool [batch, key], of all keys that the ids see."""
        visible = None if cache is not None else self.model.family.visible(self.model, ids, real)
        if visible is None:
            base: Any = self.model.module.base_model
            visible = padding_row(base.config, None if real is None else real.to(torch.int64))
        return run_layers(self.model, ids, visible, positions, cache)


class ShadowForwards(Forwards):
    """The canvas, and behind it a block of masks at the places of the block at work.

    A shadow column sees the canvas but its own column, and the other shadows; no canvas column sees a shadow.
    """

    def __init__(self, model: Model, shadow: int) -> None:
        super().__init__(model)
        self.shadow = shadow
        self.both: Tensor  # [batch, column + shadow, width]: hidden states of the last forward

    def __call__(self, tokens: Tensor, real: Tensor | None, span: tuple[int, int], keep: bool = False) -> Tensor:
        batch, width = tokens.shape
        start, stop = span
        masks = tokens.new_full((batch, stop - start), self.model.require_mask())
        places = self._positions(tokens, real).expand(batch, -1)
        positions = torch.cat([places, places[:, start:stop]], 1)
        ids, visible = torch.cat([tokens, masks], 1), self.visible(tokens, real, span)
        self.both = run_layers(self.model, ids, visible, positions, None)
        return self.both[:, :width]

    def visible(self, tokens: Tensor, real: Tensor | None, span: tuple[int, int], keep: bool = False) -> Tensor:
        width, (start, stop) = tokens.shape[1], span
        size = stop - start
        visible = torch.ones(len(tokens), 1, width + size, width + size, dtype=torch.bool, device=tokens.device)
        visible[..., :width, width:] = False
        shadows = torch.arange(size, device=tokens.device)
        visible[..., width + shadows, start + shadows] = False
        if real is not None:
            visible[..., :width] &= real[:, None, None]
        return visible


class BlockForwards(Forwards):
    """Forwards of block-causal decoders: hidden states of a window, or of all up to its end under a block mask.

    A block sees itself and the blocks before it, which do not change any more: with `cached` their keys and values are
    kept, which is exact.
    """

    def __init__(self, model: Model, size: int, cached: bool, shift: bool) -> None:
        super().__init__(model, shift)
        self.size, self.cached = size, cached
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
        return (span[0] if self.cached else 0), span[1]

    def visible(self, tokens: Tensor, real: Tensor | None, span: tuple[int, int], keep: bool = False) -> Tensor | None:
        """Which keys up to the window's end each query in it sees, bool [batch | 1, 1, query, key]; None: all of them."""
        return block_mask(self.size, *self.window(span, tokens.shape[1]), real, tokens.device)

    def __call__(self, tokens: Tensor, real: Tensor | None, span: tuple[int, int], keep: bool = False) -> Tensor:
        """tokens [batch, position] → hidden [batch, window, width]; keep: its keys and values stay in the cache.

        For a shifted family the hidden state before the window is put in front: it predicts the window's first token.
        """
        start, stop = self.window(span, tokens.shape[1])
        positions = counted(real) if real is not None else torch.arange(stop, device=tokens.device).unsqueeze(0)
        visible = self.visible(tokens, real, span, keep)
        hidden = run_layers(self.model, tokens[:, start:stop], visible, positions[:, start:stop], self.cache)
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
        self.causal_context = causal_context

    def visible(self, tokens: Tensor, real: Tensor | None, span: tuple[int, int], keep: bool = False) -> Tensor | None:
        start, stop = self.window(span, tokens.shape[1])
        if keep or self.cached:  # blocks of one position are causal attention
            return block_mask(1 if keep and self.causal_context else stop, start, stop, real, tokens.device)
        causal = torch.ones(stop, stop, dtype=torch.bool, device=tokens.device).tril()
        causal[span[0] :] = True  # the block at work; without a cache the text before it is read again
        return causal[None, None] if real is None else without_padding(causal[None, None], real[:, :stop], 0)


class ReorderedForwards(BlockForwards):
    """WeDLM: what each position sees follows from which tokens are known."""

    def visible(self, tokens: Tensor, real: Tensor | None, span: tuple[int, int], keep: bool = False) -> Tensor | None:
        there = None if real is None else real[:, : span[1]]
        return reordered_mask(tokens[:, : span[1]].ne(self.model.require_mask()), there)
