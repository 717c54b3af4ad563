"""How many forwards decoding makes, and of which shape: what plans and queues count with."""

from __future__ import annotations

from sinkscope.models.cost import Workload
from sinkscope.settings.decode import Decode


def forwards_of(settings: Decode, rows: int, prompt: int) -> list[Workload]:
    """The most forwards that one call of `decode` makes; an autoregressive decoder reads, then computes a position each."""
    if settings.family == "autoregressive":
        written = Workload(settings.length - 1, rows, 1, prompt + settings.length // 2, 1)
        return [Workload(1, rows, prompt, prompt, 1), written]
    steps, canvas, block = settings.most_steps, prompt + settings.length, settings.block or settings.length
    if settings.guidance and settings.layout == "left":
        steps *= 2
    elif settings.guidance:
        rows *= 2  # both copies in one forward
    if settings.cache == "exact":  # a step computes its block alone; every block before it is stored by a forward
        stored = Workload(settings.blocks, rows, prompt // settings.blocks + block, canvas, 0)
        return [stored, Workload(steps, rows, block, canvas, max(block // 2, 1))]
    return [Workload(steps, rows, canvas, canvas, max(block // 2, 1))]
