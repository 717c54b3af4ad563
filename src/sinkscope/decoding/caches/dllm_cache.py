"""dLLM-Cache (arXiv 2506.06295): prompt and answer refreshed at intervals, and between them the columns whose values moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from sinkscope.decoding.caches.policy import CachePolicy, CacheStep
from sinkscope.decoding.canvas import Canvas
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, Share, settings

if TYPE_CHECKING:
    from sinkscope.decoding.caches.layerwise import LayerForwards
    from sinkscope.models.model import Model


@settings(DecodeError)
class DLLMCache(CachePolicy):
    """Each layer decides for itself: keys, attention outputs and MLP outputs of all other columns stay as they were.

    Counts run over the whole generation. The first layer is computed whole at every forward.
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
