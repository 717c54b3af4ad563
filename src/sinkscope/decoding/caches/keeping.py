"""Policies that keep every key, and say which columns are computed again: Fast-dLLM's two, dKV-Cache and dLLM-Cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.caches.policy import CachePolicy, CacheStep, Span
from sinkscope.decoding.canvas import Canvas
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, Share, Truth, settings

if TYPE_CHECKING:
    from sinkscope.decoding.caches.layerwise import LayerForwards
    from sinkscope.models.model import Model

Kept = Literal["decoded", "un", "un_right", "prefill"]


@settings(DecodeError)
class DualCache(CachePolicy):
    """Dual cache: only the block is recomputed; keys before and after it stay as the block's first forward made them.

    Args:
        moved: For shifted models, whether the window is moved by one column, as in d2Cache's version, rather than
            widened.
    """

    name: ClassVar[str] = "dual"
    compared: ClassVar[bool] = True

    moved: Truth = False

    def window(self, canvas: Canvas, step: CacheStep) -> Span:
        """Return the window, from the column that predicts the block's first one to its end.

        Args:
            canvas: Canvas of the generation.
            step: State of the generation.
        """
        start, stop = step.span(step.block[0], self.end(canvas, step))
        return start, stop - int(self.moved and step.shift)

    def end(self, canvas: Canvas, step: CacheStep) -> int:
        """Return the column after the window.

        Args:
            canvas: Canvas of the generation.
            step: State of the generation.
        """
        return step.block[1]


@settings(DecodeError)
class PrefixCache(DualCache):
    """Prefix cache: everything from the block on is recomputed; keys before it stay as the block's first forward made
    them.
    """

    name: ClassVar[str] = "prefix"

    def end(self, canvas: Canvas, step: CacheStep) -> int:
        return canvas.width


@settings(DecodeError)
class DKVCache(CachePolicy):
    """dKV-Cache (arXiv 2505.15781): decoded tokens are computed once more after their commit and kept until the next
    refresh.

    Args:
        refresh: Number of forwards from one refresh (a forward over the whole canvas) to the next.
        kept: Columns that are kept: "decoded" (LLaDA) keeps decoded columns and starts again in every block; "un" keeps
            a column when the next one is decoded; "un_right" when both are; "prefill" keeps the prompt alone and never
            refreshes. The default is "decoded", or "un" for a shifted model.
    """

    name: ClassVar[str] = "dkv_cache"
    compared: ClassVar[bool] = True
    draws_computed: ClassVar[bool] = True

    refresh: Count = 8
    kept: Kept | None = None

    def due(self, canvas: Canvas, step: CacheStep) -> bool | Tensor:
        known, kept = ~canvas.masked_positions(), self.kept or ("un" if step.shift else "decoded")
        cached: Tensor | None = step.memory.get("cached")
        if kept == "decoded":
            step.memory["cached"] = known
            full = step.index < 2 or step.index % self.refresh == 0
            return True if full or cached is None else ~cached
        if cached is None:
            step.memory["cached"] = torch.cat([known[:, 1:], torch.zeros_like(known[:, :1])], 1)
            return True
        if kept == "prefill":
            return ~cached
        step.memory["cached"] = cacheable(known, kept)
        return step.forward % self.refresh == 0 or ~cached


def cacheable(known: Tensor, kept: Kept) -> Tensor:
    """bool [batch, column]: whose keys and values may be kept after the next forward."""
    if kept == "un":
        return known.roll(-1, dims=1)  # as in the authors' code, the first column's flag goes to the last
    right = torch.cat([known[:, 1:], known[:, -1:]], 1)
    return known & right


@settings(DecodeError)
class DLLMCache(CachePolicy):
    """dLLM-Cache (arXiv 2506.06295): each layer decides which columns it recomputes.

    Other columns keep their keys, attention outputs and MLP outputs. The first layer is computed completely at every
    forward. Forwards are counted over the whole generation.

    Args:
        prompt_interval: Number of forwards from one refresh of the prompt to the next.
        answer_interval: Number of forwards from one refresh of the answer to the next.
        ratio: Fraction of the answer's columns that are recomputed in between, those whose values changed most.
    """

    name: ClassVar[str] = "dllm_cache"
    compared: ClassVar[bool] = True

    prompt_interval: Count = 50
    answer_interval: Count = 7
    ratio: Share = 0.25

    def compared_values(self, canvas: Canvas, step: CacheStep) -> Tensor | None:
        """Return the columns whose values this layer computes before `due` is called, bool [column]; None for no
        column.

        Args:
            canvas: Canvas of the generation.
            step: State of the generation.
        """
        if step.layer == 0 or (self.ratio == 0 and step.forward % self.answer_interval):
            return None
        return torch.arange(canvas.width, device=canvas.tokens.device) >= canvas.answers[0]

    def due(self, canvas: Canvas, step: CacheStep) -> bool | Tensor:
        if step.layer == 0:
            return True
        due = torch.zeros_like(canvas.real)
        start = canvas.answers[0]
        due[:, :start] = step.forward % self.prompt_interval == 0
        if step.forward % self.answer_interval == 0:
            due[:, start:] = True
        elif self.ratio > 0 and step.similarity is not None:
            count = int((canvas.width - start) * self.ratio)
            least = step.similarity[:, start:].topk(count, dim=1, largest=False).indices
            due.scatter_(1, start + least, True)
        return due

    def forwards(self, model: Model, shift: bool) -> LayerForwards:
        from sinkscope.decoding.caches.layerwise import LayerForwards

        return LayerForwards(model, self, shift)
