"""Fast-dLLM's caches: the first forward of a block is over everything, the others over its end or over the block alone."""

from __future__ import annotations

from typing import ClassVar

from sinkscope.decoding.caches.policy import CachePolicy, CacheStep, Span
from sinkscope.decoding.canvas import Canvas
from sinkscope.errors import DecodeError
from sinkscope.validation import Truth, settings


@settings(DecodeError)
class DualCache(CachePolicy):
    """Only the block is computed again; keys before and behind it stay as its first forward made them."""

    name: ClassVar[str] = "dual"
    compared: ClassVar[bool] = True

    moved: Truth = False  # for shifted models the window is moved by one, as d2Cache's version does, and not widened

    def window(self, canvas: Canvas, step: CacheStep) -> Span:
        return moved_span(step, step.block[1], self.moved)


@settings(DecodeError)
class PrefixCache(CachePolicy):
    """Everything from the block on is computed again; keys before it stay as its first forward made them."""

    name: ClassVar[str] = "prefix"
    compared: ClassVar[bool] = True

    moved: Truth = False  # as in the dual cache

    def window(self, canvas: Canvas, step: CacheStep) -> Span:
        return moved_span(step, canvas.width, self.moved)


def moved_span(step: CacheStep, stop: int, moved: bool) -> Span:
    """From the row that predicts the block's first column, to the end or, where moved, to the row that predicts it."""
    start, stop = step.span(step.block[0], stop)
    return start, stop - int(moved and step.shift)
