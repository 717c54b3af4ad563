"""Focus-dLLM-like: past confidence says which masks of the block are computed, and sinks stay among the kept keys."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.caches.evicting import Received
from sinkscope.decoding.caches.policy import CacheStep
from sinkscope.decoding.canvas import Canvas, Step
from sinkscope.errors import DecodeError
from sinkscope.validation import Share, settings


@settings(DecodeError)
class Focus(Received):
    """After Focus-dLLM's description: of the block's masks those are computed that were surest before, and the last commits.

    Keys outside the block stay by what they received, sinks first. Not compared with its authors' code.
    """

    name: ClassVar[str] = "focus"

    queries: Share = 0.5  # of the block's masks
    sinks: Literal["keep", "drop"] | None = "keep"

    def due(self, canvas: Canvas, step: CacheStep) -> bool | Tensor:
        if "confidence" not in step.memory or super().due(canvas, step) is True:
            return True
        masks = canvas.masked_positions()
        masks[:, : step.block[0]] = False
        masks[:, step.block[1] :] = False
        counts = (masks.sum(1) * self.queries).ceil().long()
        sure = step.memory["confidence"].masked_fill(~masks, -torch.inf)
        rank = sure.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        chosen = masks & (rank < counts[:, None])
        if step.shift:  # the row before a mask predicts it
            chosen = chosen.roll(-1, dims=1)
        due: Tensor = chosen | (step.memory["committed"] & masks.any(1, keepdim=True))
        return due

    def note(self, done: Step, canvas: Canvas, step: CacheStep) -> None:
        before = step.memory.get("confidence", torch.zeros_like(done.confidence))
        step.memory["confidence"] = torch.where(done.confidence.isnan(), before, done.confidence)
        step.memory["committed"] = done.committed
