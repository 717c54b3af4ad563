"""dKV-Cache (arXiv 2505.15781): a token's key and value are kept from one step after it was committed."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.caches.policy import CachePolicy, CacheStep
from sinkscope.decoding.canvas import Canvas
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, settings

Kept = Literal["decoded", "un", "un_right", "prefill"]


@settings(DecodeError)
class DKVCache(CachePolicy):
    """Known tokens are computed once more after their commit, then kept until the next full forward.

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
            step.memory["cached"] = moved_left(known, last=False)
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


def moved_left(flags: Tensor, last: bool) -> Tensor:
    """bool [batch, column]: each column has the flag of the one behind it."""
    return torch.cat([flags[:, 1:], torch.full_like(flags[:, :1], last)], 1)
