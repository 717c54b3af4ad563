"""Policies that keep a share of the keys outside the block: by what they received, by place, by chance, by the block's query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import max_pool1d

from sinkscope.attention.call import Call
from sinkscope.decoding.caches.policy import CachePolicy, CacheStep, Per, Span
from sinkscope.decoding.canvas import Canvas, Step
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, FromZero, Seed, Share, settings

By = Literal["received", "sinks", "no_sinks", "recent", "random"]
Drift = Annotated[float, Field(strict=True, ge=0, le=2, allow_inf_nan=False)]


@settings(DecodeError)
class Evicting(CachePolicy):
    """Base class of cache policies that keep a part of the keys.

    A *refresh* is a forward over the whole canvas, at which the kept keys are chosen; between refreshes only the block
    is computed. `keep=1` is the dual cache, and `keep=1` with `refresh=1` is decoding without a cache. A batch is
    refreshed as a whole.

    Args:
        keep: Fraction of the columns outside the window (the block and the columns that predict it) that are kept.
        per: Heads that keep the same columns: "head" for each head its own, "layer" for all heads of a layer, "model"
            for all layers.
        recent: Number of columns nearest to the window that are kept at any score.
        blocks: Number of blocks decoded per refresh, or "all".
        refresh: Number of forwards after which the canvas is refreshed, also inside a block; None for never.
        drift: Change of the most-attended key's value (1 - cosine, 0 to 2) above which the canvas is refreshed; None
            for never.
        sinks: Special treatment of attention sinks: "keep" keeps them first, "drop" removes them first, None treats
            them as other keys.
        rule: Sink rule, written as in study files; the default is an epsilon of 3 in column sums.
    """

    evicts: ClassVar[bool] = True

    keep: Share = 0.25
    _: KW_ONLY
    per: Per = "head"
    recent: FromZero = 0
    blocks: Count | Literal["all"] = 1
    refresh: Count | None = None
    drift: Drift | None = None
    sinks: Literal["keep", "drop"] | None = None
    rule: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.refuse(rule=self.rule is not None and self.forced is None, blocks=self.blocks != 1 and self.refresh == 1)

    def refuse(self, **without_effect: bool) -> None:
        """Refuse settings that change nothing next to the others.

        Args:
            **without_effect: Setting names, each with whether it has no effect.
        """
        for name in (name for name, wrong in without_effect.items() if wrong):
            raise DecodeError(f"{name} has no effect in {self!r:.200}; leave it out.")

    @property
    def forced(self) -> Literal["keep", "drop"] | None:  # type: ignore[override]
        """Treatment of sinks at any score: "keep", "drop" or None."""
        return self.sinks

    @property
    def reads_received(self) -> bool:
        """Whether the score is computed from received attention."""
        return False

    @property
    def needs_received(self) -> bool:  # type: ignore[override]
        """Whether received attention must be recorded."""
        chooses = self.keep < 1 and self.refresh != 1 and (self.reads_received or self.forced is not None)
        return chooses or self.drift is not None

    @property
    def lives_on(self) -> bool:
        return self.blocks != 1

    def due(self, canvas: Canvas, step: CacheStep) -> bool | Tensor:
        served = step.moved and self.blocks != "all" and step.served >= self.blocks
        turned = self.drift is not None and step.drift > self.drift
        return served or turned or step.since == self.refresh


def nearness(shape: tuple[int, ...], window: tuple[int, int], like: Tensor) -> Tensor:
    """Minus the distance of each column to the window, float64 of that shape [batch, kv head, column]."""
    columns = torch.arange(shape[-1], device=like.device)
    distance = torch.where(columns < window[0], window[0] - columns, columns - window[1] + 1)
    return (-distance).double().expand(shape)


def by_kv_head(received: Tensor, heads: int) -> Tensor:
    """Sum received attention over the queries' heads that share a key head.

    Args:
        received: Received attention [batch, head, column].
        heads: Number of key-value heads.

    Returns:
        Received attention [batch, kv head, column] in float64.
    """
    grouped: Tensor = received.double().unflatten(1, (heads, -1))
    return grouped.sum(2)


@settings(DecodeError)
class Received(Evicting):
    """Policy after H2O: keep the columns that received most attention at the last refresh."""

    name: ClassVar[str] = "h2o"

    @property
    def reads_received(self) -> bool:
        return True

    def score(self, keys: Tensor, values: Tensor, received: Tensor | None, canvas: Canvas, step: CacheStep) -> Tensor:
        if received is None:  # everything is kept
            return nearness(keys.shape[:3], self.window(canvas, step), keys)
        return by_kv_head(received, keys.shape[1])


@settings(DecodeError)
class Streaming(Evicting):
    """Policy after StreamingLLM: keep the first columns of each sequence and those nearest to the block.

    Args:
        first: Number of first columns that are kept.
    """

    name: ClassVar[str] = "streaming"

    first: FromZero = 4

    def score(self, keys: Tensor, values: Tensor, received: Tensor | None, canvas: Canvas, step: CacheStep) -> Tensor:
        near = nearness(keys.shape[:3], self.window(canvas, step), keys)
        real = canvas.real.to(keys.device)
        head = (real.cumsum(1) <= self.first) & real
        return near + head[:, None] * 2.0 * keys.shape[2]


@settings(DecodeError)
class Random(Evicting):
    """Control of the same budget: keep random columns.

    Args:
        seed: Seed of the random columns.
    """

    name: ClassVar[str] = "random"

    seed: Seed = 0

    def score(self, keys: Tensor, values: Tensor, received: Tensor | None, canvas: Canvas, step: CacheStep) -> Tensor:
        return step.draw(self.seed, keys.shape[:3], self.per != "head").to(keys.device, torch.float64)


@settings(DecodeError)
class SparseCache(Evicting):
    """Sparse key-value cache: between refreshes only the block is computed, against its own keys and a part of the
    other keys.

    Settings that the table leaves out are those of `Evicting`.

    Args:
        by: Order in which columns are kept: "received" by attention received at the last refresh; "sinks" sinks first
            (by `rule`, strongest first), then the nearest columns; "no_sinks" sinks last, as a control; "recent" the
            nearest columns; "random" random columns.
        seed: Seed of `by="random"`.
    """

    name: ClassVar[str] = "sparse_cache"

    by: By = "received"
    _: KW_ONLY
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse(seed=bool(self.seed) and self.by != "random", sinks=self.sinks is not None and "sinks" in self.by)

    @property
    def forced(self) -> Literal["keep", "drop"] | None:  # type: ignore[override]
        own: dict[str, Literal["keep", "drop"]] = {"sinks": "keep", "no_sinks": "drop"}
        return own.get(self.by, self.sinks)

    @property
    def reads_received(self) -> bool:
        return self.by == "received"

    def score(self, keys: Tensor, values: Tensor, received: Tensor | None, canvas: Canvas, step: CacheStep) -> Tensor:
        if self.by == "random":
            return step.draw(self.seed, keys.shape[:3], self.per != "head").to(keys.device, torch.float64)
        if self.by == "received" and received is not None:
            return by_kv_head(received, keys.shape[1])
        return nearness(keys.shape[:3], self.window(canvas, step), keys)


@settings(DecodeError)
class Focus(Received):
    """Policy after the description of Focus-dLLM, not compared with its authors' code.

    Between refreshes it computes the most confident mask tokens of the block and the tokens committed last. Keys
    outside the block are kept by received attention, sinks first.

    Args:
        queries: Fraction of the block's mask tokens that are computed.
    """

    name: ClassVar[str] = "focus"

    queries: Share = 0.5
    sinks: Literal["keep", "drop"] | None = "keep"

    def due(self, canvas: Canvas, step: CacheStep) -> bool | Tensor:
        if "confidence" not in step.memory or super().due(canvas, step) is True:
            return True
        masks = canvas.masked_positions(step.block)
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


# ---- Sparse-dLLM (arXiv 2508.02558)

FULL = 2  # forwards over the whole canvas at the begin of a block


@settings(DecodeError)
class SparseDLLM(Evicting):
    """Policy of Sparse-dLLM (arXiv 2508.02558): two forwards over the whole canvas begin a block, which is then
    computed alone.

    The kept keys are those that the block's mean query scores highest. The score of a column is the largest one among
    its neighbours.

    Args:
        kernel: Number of neighbouring columns, odd, over which the largest score is taken.
    """

    name: ClassVar[str] = "sparse_dllm"
    compared: ClassVar[bool] = True
    draws_computed: ClassVar[bool] = True

    keep: Share = 0.5
    kernel: Count = 3
    _: KW_ONLY

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise DecodeError(f"Expected an odd kernel, whose middle is a column, got {self.kernel}.")

    def due(self, canvas: Canvas, step: CacheStep) -> bool | Tensor:
        return step.index < FULL or super().due(canvas, step)

    def window(self, canvas: Canvas, step: CacheStep) -> Span:
        if (
            step.index < FULL
        ):  # a shifted model needs the row before the block, unless its first column is known by then
            masked = bool(canvas.masked_positions()[:, step.block[0]].any())
            step.memory["window"] = step.span(*step.block) if masked else step.block
        window: Span = step.memory["window"]
        return window

    def budget(self, outside: Tensor) -> Tensor:
        return (outside.double() * self.keep).floor().long()

    def watch(self, call: Call, canvas: Canvas, step: CacheStep) -> None:
        if call.queries == canvas.width:
            step.memory["query", call.layer] = call.q[:, :, slice(*step.block)].mean(2)

    def score(self, keys: Tensor, values: Tensor, received: Tensor | None, canvas: Canvas, step: CacheStep) -> Tensor:
        query = step.memory["query", step.layer]  # [batch, head, dim]
        of_head = keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)
        importance = (query[:, :, None] * of_head).sum(-1).mean(1)  # [batch, column]
        start, stop = self.window(canvas, step)
        outside = torch.cat([importance[:, :start], importance[:, stop:]], 1)
        pooled = max_pool1d(outside[:, None].float(), self.kernel, stride=1, padding=self.kernel // 2)[:, 0]
        ranked = rank_as_topk(pooled, int(pooled.shape[1] * self.keep))
        between = ranked.new_zeros(len(ranked), stop - start)
        scores = torch.cat([ranked[:, :start], between, ranked[:, start:]], 1)
        return scores[:, None].expand(keys.shape[:3])


def rank_as_topk(scores: Tensor, count: int) -> Tensor:
    """Ranks [batch, column] of scores: where equal ones stand on both sides of the limit, those rank higher that topk takes."""
    taken = torch.zeros_like(scores, dtype=torch.bool)
    if count:
        taken.scatter_(1, scores.topk(count, dim=1).indices, True)
    values = scores.unique(sorted=True)
    return 2.0 * torch.searchsorted(values, scores) + taken
