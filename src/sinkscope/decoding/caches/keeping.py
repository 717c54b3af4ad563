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
    """Only the block is computed again; keys before and behind it stay as its first forward made them."""

    name: ClassVar[str] = "dual"
    compared: ClassVar[bool] = True

    moved: Truth = False  # for shifted models the window is moved by one, as d2Cache's version does, and not widened

    def window(self, canvas: Canvas, step: CacheStep) -> Span:
        """From the row that predicts the first column, to the end or, where moved, to the row that predicts it."""
        start, stop = step.span(step.block[0], self.end(canvas, step))
        return start, stop - int(self.moved and step.shift)

    def end(self, canvas: Canvas, step: CacheStep) -> int:
        """The column behind the window."""
        return step.block[1]


@settings(DecodeError)
class PrefixCache(DualCache):
    """Everything from the block on is computed again; keys before it stay as its first forward made them."""

    name: ClassVar[str] = "prefix"

    def end(self, canvas: Canvas, step: CacheStep) -> int:
        return canvas.width


@settings(DecodeError)
class DKVCache(CachePolicy):
    """dKV-Cache (arXiv 2505.15781): known tokens are computed once more after their commit, then kept until the next full forward.

    kept: "decoded" (LLaDA) keeps what is known, and begins anew in every block. For shifted models "un" keeps a column as
    soon as the one behind it is known, "un_right" where both are; "prefill" keeps the prompt alone, and never looks again.
    """

    name: ClassVar[str] = "dkv_cache"
    compared: ClassVar[bool] = True
    draws_computed: ClassVar[bool] = True

    refresh: Count = 8  # forwards from one over the whole canvas to the next
    kept: Kept | None = None  # None: "decoded", or "un" for a shifted model

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
    """dLLM-Cache (arXiv 2506.06295): each layer decides for itself which columns it computes.

    Keys, attention outputs and MLP outputs of all others stay as they were. Counts run over the whole generation. The
    first layer is computed whole at every forward.
    """

    name: ClassVar[str] = "dllm_cache"
    compared: ClassVar[bool] = True

    prompt_interval: Count = 50  # forwards from one refresh of the prompt to the next
    answer_interval: Count = 7  # and of the answer
    ratio: Share = 0.25  # of the answer's columns that are computed in between: the least similar values

    def compared_values(self, canvas: Canvas, step: CacheStep) -> Tensor | None:
        """bool [column]: whose values are computed at once in this layer, before `due` is asked; None: nobody's."""
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
