"""d2Cache (arXiv 2509.23094): masks that are sure and near to known tokens, and the columns that attention flows from."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.attention.call import Call
from sinkscope.decoding.caches.policy import CachePolicy, CacheStep
from sinkscope.decoding.canvas import Canvas, Step
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, FromZero, Positive, Share, Truth, settings


@settings(DecodeError)
class D2Cache(CachePolicy):
    """d2Cache (arXiv 2509.23094): after one forward over the whole canvas, compute the most certain mask tokens, the
    tokens committed last, and the columns with most attention flow.

    Confidences are those of the first forward, as in the authors' code.

    Args:
        rollout_p: Fraction of the attention flow whose columns are recomputed.
        current_k: Number of mask tokens that are computed.
        sigma: Width of the certainty density, in columns.
        inflate_w: Largest gap, in columns, between computed columns that is computed too.
        shrinking: True to treat as the block only what is still masked of it in the first unfinished sequence, as the
            published code does.
    """

    name: ClassVar[str] = "d2cache"
    compared: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = True  # attention of padded columns is part of the flow

    rollout_p: Share = 0.1
    current_k: Count = 32
    sigma: Positive = 10.0
    inflate_w: FromZero = 0
    shrinking: Truth = False

    def due(self, canvas: Canvas, step: CacheStep) -> bool | Tensor:
        memory = step.memory
        open_here = canvas.masked_positions(step.block)
        memory["open"] = open_here
        if "chosen" not in memory:
            return True
        # A row whose block is full waits for the others: nothing of it is computed.
        goes_on = open_here.any(1)
        chosen = topped_up(memory["chosen"], memory["score"], memory["importance"], goes_on, canvas)
        return chosen & goes_on[:, None]

    def candidates(self, wanted: Tensor, canvas: Canvas, step: CacheStep) -> Tensor:
        return wanted if step.forward > 1 else wanted | canvas.masked_positions()

    def watch(self, call: Call, canvas: Canvas, step: CacheStep) -> None:
        """Accumulate attention rollout; the flow of columns that are not computed stays as it is.

        Args:
            call: Attention call.
            canvas: Canvas of the generation.
            step: State of the generation.
        """
        flow = call.scores().float().softmax(-1).mean(1)  # [batch, query, column]
        batch, width = canvas.tokens.shape
        everything = torch.arange(width, device=flow.device).expand(batch, -1)
        columns = everything if call.queries == width else step.memory["columns"].to(flow.device)
        places = columns[..., None]
        flow = flow.scatter_add(2, places, torch.ones_like(flow[..., :1]))
        flow = flow / flow.sum(-1, keepdim=True)
        if call.layer == 0:
            rollout = torch.eye(width, device=flow.device).repeat(batch, 1, 1)
        else:
            rollout = step.memory["rollout"]
            flow = flow @ rollout
        step.memory["rollout"] = rollout.scatter_(1, places.expand_as(flow), flow)

    def note(self, done: Step, canvas: Canvas, step: CacheStep) -> None:
        memory = step.memory
        first = "confidence" not in memory
        if first:
            memory["confidence"] = done.confidence.nan_to_num(0.0)
        goes_on = memory["open"].any(1, keepdim=True)
        score = memory["confidence"] * certainty_density(canvas, self.sigma)
        inside = torch.zeros_like(canvas.real)
        inside[:, slice(*step.block)] = True
        score = score + torch.where(memory["open"] if self.shrinking else inside, score[goes_on[:, 0]].max(), 0.0)
        importance = memory["rollout"].sum(1).to(score.device)
        chosen = self.choose(done, canvas, step, score, importance)
        for name, found in (("chosen", chosen), ("score", score), ("importance", importance)):
            memory[name] = found if first else torch.where(goes_on, found, memory[name])

    def choose(self, done: Step, canvas: Canvas, step: CacheStep, score: Tensor, importance: Tensor) -> Tensor:
        """Return the columns that the next forward computes, bool [batch, column].

        Args:
            done: Denoising step that was just finished.
            canvas: Canvas after the commit.
            step: State of the generation.
            score: Confidence times certainty density of each column [batch, column].
            importance: Attention flow of each column [batch, column].
        """
        masks, open_here = canvas.masked_positions(), step.memory["open"]
        chosen = torch.zeros_like(masks)
        for row in open_here.any(1).nonzero().flatten().tolist():
            start, size = step.block[0], step.block[1] - step.block[0]
            if self.shrinking:
                start, size = int(open_here[row].int().argmax()), int(open_here[row].sum())
            end = search_end(masks[row], canvas.answers[0], size, self.current_k)
            places = masks[row].nonzero().flatten()
            places = places[(places >= start) & (places < end)]
            best = score[row, places].topk(min(self.current_k, len(places))).indices
            chosen[row, places[best]] = True
        before = canvas.answers[0] - 1
        if step.shift:
            chosen = chosen.roll(-1, dims=1)
        taken = chosen | done.committed
        if step.shift:
            taken[:, before] = False  # it takes part in the flow, but the answer's first mask alone decides on it
        flowing = flow_share(importance.masked_fill(taken, 0.0), self.rollout_p)
        if step.shift:
            flowing[:, before] = False
        chosen = chosen | done.committed | flowing
        return inflated(chosen, self.inflate_w) if self.inflate_w else chosen


def search_end(masks: Tensor, answer: int, size: int, count: int) -> int:
    """End of the block in which the `count`-th remaining mask [column] lies, counted from the answer; of the canvas, if fewer."""
    places = masks.nonzero().flatten()
    if len(places) < count:
        return len(masks)
    blocks = (int(places[count - 1]) - answer) // size + 1
    return min(answer + blocks * size, len(masks))


def flow_share(importance: Tensor, share: float) -> Tensor:
    """The most important columns that together have the share, at least one of each row; bool [batch, column]."""
    ordered, order = (importance / importance.sum(1, keepdim=True)).sort(dim=1, descending=True)
    inside = ordered.cumsum(1) <= share
    inside[:, 0] = True
    return torch.zeros_like(inside).scatter(1, order, inside) & (importance > 0)


def inflated(chosen: Tensor, distance: int) -> Tensor:
    """Between two chosen columns that are at most so far apart everything is chosen."""
    result = chosen.clone()
    for row, flags in enumerate(chosen):
        places = flags.nonzero().flatten().tolist()
        for left, right in pairwise(places):
            if right - left <= distance:
                result[row, left:right] = True
    return result


def topped_up(chosen: Tensor, score: Tensor, importance: Tensor, goes_on: Tensor, canvas: Canvas) -> Tensor:
    """Rows that go on and have fewer columns than the fullest take more: of the answer by score, then by importance."""
    if not bool(goes_on.any()):
        return chosen
    counts = chosen.sum(1)
    most = int(counts[goes_on].max())
    answer = torch.arange(canvas.width, device=chosen.device) >= canvas.answers[0]
    order = importance + torch.where(answer, importance.max() + score.max() + score, 0.0)
    chosen = chosen.clone()
    for row in goes_on.nonzero().flatten().tolist():
        missing = most - int(counts[row])
        best = order[row].masked_fill(chosen[row], -torch.inf).topk(missing).indices
        chosen[row, best] = True
    return chosen


def certainty_density(canvas: Canvas, sigma: float) -> Tensor:
    """How much is known around each column, float32 [batch, column], 0 outside the answer; between 0 and 1.

    Everything before the answer counts as known, and everything behind it as soon as its last column is.
    """
    start, length = canvas.answers[0], canvas.length
    known = ~canvas.masked_positions()[:, start : start + length]
    left = torch.ones_like(known)
    right = known[:, -1:].expand_as(known)
    around = torch.cat([left, known, right], 1).float()  # the columns from −length to 2 × length
    places = torch.arange(-length, 2 * length, device=around.device)
    distance = torch.arange(length, device=around.device)[:, None] - places
    kernel = (-distance.float().square() / (2 * sigma**2)).exp()
    offsets = torch.arange(-3 * length, 3 * length, device=around.device).float()
    total = (-offsets.square() / (2 * sigma**2)).exp().sum()
    density = canvas.tokens.new_zeros(canvas.tokens.shape, dtype=torch.float32)
    density[:, start : start + length] = around @ kernel.T / total
    return density
