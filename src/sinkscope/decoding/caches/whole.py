"""Fast-dLLM's caches: the first forward of a block is over everything, the others over its end or over the block alone."""

from __future__ import annotations

from typing import ClassVar

from sinkscope.decoding.caches.policy import CachePolicy, CacheStep, Span
from sinkscope.decoding.canvas import Canvas
from sinkscope.errors import DecodeError
from sinkscope.validation import settings


@settings(DecodeError)
class DualCache(CachePolicy):
    """Only the block is computed again; keys before and behind it stay as its first forward made them."""

    name: ClassVar[str] = "dual"
    compared: ClassVar[bool] = True


@settings(DecodeError)
class PrefixCache(CachePolicy):
    """Everything from the block on is computed again; keys before it stay as its first forward made them."""

    name: ClassVar[str] = "prefix"
    compared: ClassVar[bool] = True

    def window(self, canvas: Canvas, step: CacheStep) -> Span:
        return step.span(step.block[0], canvas.width)
