"""Block diffusion: LLaDA2.0 and 2.1, SDAR and TraDo, Fast-dLLM v2; a block sees itself and the blocks before it."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.choose import CommitRule, most_confident, register
from sinkscope.decoding.samplers.llada import quota
from sinkscope.decoding.settings import Cache, Choice, Decode, Layout, Stop, TokenId, TokenIds, sampler
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, FromZero, NonNegative, Share, Truth, settings


@settings(DecodeError)
class BlockDiffusion(Decode):
    """Blocks from column 0, block-causal."""

    layout: ClassVar[Layout] = "grid"
    choice: ClassVar[Choice] = "block_draw"
    block_causal: ClassVar[bool] = True
    caches: ClassVar[tuple[str | None, ...]] = (None, "exact")

    block: Count | None = 32
    _: KW_ONLY
    top_p: Share | None = None
    top_k: Count | None = None


@sampler("llada2")
class LLaDA2(BlockDiffusion):
    """Sampler of LLaDA2.0: blocks from column 0 with block-causal attention; commit every token above the threshold,
    and at least a quota.

    Args:
        steps: Number of denoising steps per block.
        minimal_topk: Divisor that limits the steps per block to `length` // `minimal_topk`.
        early_stop: True to end inside a block, as soon as no mask token is left before end-of-text; False to end after
            the block.
    """

    own_rule: ClassVar[str] = "dynamic"
    cuts_at_end: ClassVar[bool] = True

    block: Count | None = 32
    steps: Count | None = 32
    _: KW_ONLY
    threshold: Share | None = 0.95
    minimal_topk: Count = 1
    eos_id: TokenId | None = None
    early_stop: Truth = False
    temperature: NonNegative = 0.0
    stop: Stop = "eos"

    def complete(self) -> None:
        if self.early_stop:
            self.put(stop="early_eos")


@sampler("llada21")
class LLaDA21(BlockDiffusion):
    """Sampler of LLaDA2.1: as LLaDA2.0, and decoded tokens of the present block are replaced when the model is
    confident in others.

    Args:
        editing_threshold: Smallest confidence at which another token replaces a decoded one.
        max_post_steps: Largest number of forwards over a block without mask tokens.
        num_to_transfer: Smallest number of tokens committed per step.
        early_stop: True to end after a block with end-of-text.
    """

    own_rule: ClassVar[str] = "edit"
    cuts_at_end: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ("steps",)

    block: Count | None = 32
    _: KW_ONLY
    threshold: Share | None = 0.95
    editing_threshold: Share = 0.9
    max_post_steps: FromZero = 16
    num_to_transfer: Count = 1
    eos_id: TokenId | None = None
    early_stop: Truth = False
    temperature: NonNegative = 0.0

    @property
    def most_steps(self) -> int:
        size = self.block or self.length
        return (self.blocks + 1) * (size + self.max_post_steps)

    def complete(self) -> None:
        self.put(steps=None)
        if self.early_stop:
            self.put(stop="eos")


@sampler("sdar")
class SDAR(BlockDiffusion):
    """Sampler of SDAR and TraDo: sampled tokens, block by block, over an exact cache.

    At temperature 0 the likeliest token is chosen; the authors' code fails there.

    Args:
        steps: Number of denoising steps per block.
        rule: Commit rule: "dynamic" commits tokens above `threshold` and at least a quota, "static" the most confident
            tokens of a quota, "sequential" a quota from left to right.
        overwrite: Whether a quota larger than the number of mask tokens replaces decoded tokens and tokens of the
            prompt: "reference" does so, as the authors' code does; "never" commits at mask tokens only.
    """

    own_rule: ClassVar[str] = "dynamic"  # or `rule`
    stores_last_block: ClassVar[bool] = True

    block: Count | None = 4
    steps: Count | None = 4
    rule: Literal["dynamic", "static", "sequential"] = "dynamic"
    _: KW_ONLY
    threshold: Share | None = 0.85
    temperature: NonNegative = 1.0
    top_p: Share | None = 1.0
    top_k: Count | None = None
    stop_ids: TokenIds = ()  # generation ends after the block that holds one of these
    overwrite: Literal["never", "reference"] = "never"
    cache: Cache = "exact"

    @property
    def commit_rule(self) -> str:
        return self.commit or self.rule

    def complete(self) -> None:
        if self.stop_ids:
            self.put(stop="ids")
        if self.commit_rule in ("static", "sequential"):
            self.put(threshold=None)


@sampler("fast_dllm2")
class FastDLLM2(BlockDiffusion):
    """Sampler of Fast-dLLM v2: block-causal attention and shifted logits; each block is filled sub-block by sub-block.

    Args:
        sub_block: Number of tokens per sub-block; None makes the block one sub-block.
        threshold: Smallest confidence at which a token is committed; every step commits at least one token.
    """

    own_rule: ClassVar[str] = "sub_blocks"
    unused: ClassVar[tuple[str, ...]] = ("steps",)

    block: Count | None = 32
    sub_block: Count | None = 8
    _: KW_ONLY
    threshold: Share | None = 1.0
    temperature: NonNegative = 0.0
    top_p: Share | None = 0.95
    top_k: Count | None = None
    cache: Cache = "exact"
    stop: Stop = "eos"


@register("static")
class Static(CommitRule):
    """LLaDA2.0, SDAR and TraDo: the most confident, a quota of the whole block per step, whatever is known already."""

    block_only = True

    def begin(self) -> None:
        settings = self.settings
        self.size = settings.block
        self.steps = min(
            settings.steps or settings.length, max(settings.length // getattr(settings, "minimal_topk", 1), 1)
        )
        self.overwrites = getattr(settings, "overwrite", "never") == "reference"

    def is_unfinished(self) -> bool:
        return self.step < self.steps and super().is_unfinished()

    def candidate_positions(self) -> Tensor:
        # A draw is over the whole block, known tokens included: so the random numbers fall as in the authors' code.
        if self.settings.temperature == 0 and not self.overwrites:
            return self.open()
        working = self.open().any(1, keepdim=True)  # a row that is finished draws nothing while it waits for others
        return self.block.inside & self.run.canvas.real & working

    @property
    def quota(self) -> int:
        return quota(self.size, self.steps, self.step)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        """Known tokens count −∞, and are reached only where overwriting is asked for."""
        open_positions = self.open()
        ranked = confidence.masked_fill(~open_positions, -torch.inf)
        chosen = most_confident(ranked, [self.quota] * len(ranked), self.run.padding)
        if not self.overwrites:
            return Picks(chosen)
        start, stop = self.block.span
        beyond, ranked = torch.zeros(chosen.shape, dtype=torch.bool), ranked.cpu()
        for row in range(len(ranked)):  # as torch.topk over the block breaks ties among −∞, on a CPU
            beyond[row, start + ranked[row, start:stop].topk(self.quota).indices] = True
        beyond = beyond.to(chosen.device)
        return Picks(beyond & open_positions, edit=beyond & ~open_positions)


@register("dynamic", needs=["threshold"])
class Dynamic(Static):
    """All above the threshold if that fills the quota, else the most confident."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        sure = (confidence > self.settings.threshold) & self.open()
        best = super().pick(candidates, confidence)
        enough = sure.sum(1, keepdim=True) >= self.quota
        edit = None if best.edit is None else best.edit & ~enough
        return Picks(torch.where(enough, sure, best.commit), edit)


@register("sequential")
class Sequential(Static):
    """The quota's positions from the first mask on."""

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        open_positions = self.open()
        if not self.overwrites:
            return Picks(open_positions & (open_positions.cumsum(1) <= self.quota))
        begun = open_positions.cumsum(1) > 0
        reached = begun & (begun.cumsum(1) <= self.quota) & self.block.inside
        return Picks(reached & open_positions, edit=reached & ~open_positions)


@register("edit", needs=["threshold", "editing_threshold", "max_post_steps"])
class Edit(CommitRule):
    """Goes on until a forward that found no mask edits nothing, or max_post_steps such forwards were made."""

    block_only = True

    def begin(self) -> None:
        self.post_steps = torch.zeros_like(self.run.done, dtype=torch.int64)
        self.settled = self.run.done.clone()  # rows whose block is finished

    def candidate_positions(self) -> Tensor:
        return self.block.inside & self.run.canvas.real & ~self.settled.unsqueeze(1)

    def is_unfinished(self) -> bool:
        self.post_steps += ~self.open().any(1)
        self.settled = self.settled | (self.post_steps > self.settings.max_post_steps)
        return not bool(self.settled.all())

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        settings, open_positions = self.settings, self.open()
        fewest = settings.num_to_transfer or 1
        sure = (confidence > settings.threshold) & open_positions
        ranked = confidence.masked_fill(~open_positions, -torch.inf)
        best = most_confident(ranked, [fewest] * len(ranked), self.run.padding)
        commit = torch.where(sure.sum(1, keepdim=True) >= fewest, sure, best)
        known = self.candidate_positions() & ~open_positions & ~self.run.canvas.given
        edit = known & (candidates != self.run.canvas.tokens) & (confidence > settings.editing_threshold)
        self.settled = self.settled | ~(open_positions.any(1) | edit.any(1))
        return Picks(commit, edit)


@register("sub_blocks", needs=["threshold"])
class SubBlocks(CommitRule):
    """Fast-dLLM v2: sub-blocks from left to right, each by confidence, at least one token per step.

    A block's first token is the likeliest after the blocks before it; no forward of its own is needed for that.
    """

    block_only = True

    def begin(self) -> None:
        run, first = self.run, self.block.span[0]
        last = getattr(run.forwards, "last", None)
        if last is not None:
            rows = self.open()[:, first].nonzero().flatten()
            if len(rows):
                logits = run.logits(last, rows, torch.ones_like(rows))
                run.canvas.tokens = run.canvas.tokens.clone()
                run.canvas.tokens[rows, first] = logits.argmax(-1)

    def open(self) -> Tensor:
        """Open positions of each row's first sub-block that has any."""
        opened = super().open()
        size = self.settings.sub_block or self.settings.block or 1
        columns = torch.arange(opened.shape[1], device=opened.device)
        first = torch.where(opened, columns, opened.shape[1]).amin(1, keepdim=True)
        start = self.block.span[0]
        return opened & ((columns - start) // size == (first - start) // size)

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        chosen = confidence > self.settings.threshold
        rows = self.open().any(1).nonzero().flatten()
        chosen[rows, confidence[rows].argmax(-1)] = True
        return Picks(chosen)
