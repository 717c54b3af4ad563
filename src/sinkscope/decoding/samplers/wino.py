"""WINO: commit widely, and take back what a second look, from masks that do not see the token, no longer believes."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Picks
from sinkscope.decoding.choose import CommitRule, register
from sinkscope.decoding.settings import Decode, sampler
from sinkscope.validation import Count, NonNegative, Share

if TYPE_CHECKING:
    from sinkscope.decoding.forwards import Forwards
    from sinkscope.models.model import Model

MOST_TAKEN, LEAST_CAP, TAKEN_SHARE = 20, 5, 0.7  # of the masks of a block in one step
FIRST_LIMIT = 30  # tokens that may be taken back after the first step of a block


@sampler("wino")
class WINO(Decode):
    """Sampler of WINO (arXiv 2507.18578): commit many tokens per step, and mask again those that the model no longer
    supports.

    `commit="wino_port"` is the version of d2Cache, which has other limits.

    Args:
        threshold: Confidence above which a token is committed.
        threshold_back: Probability below which a decoded token may be masked again.
        at_least: Smallest number of tokens committed per step ("wino_port" only).
    """

    own_rule: ClassVar[str] = "wino"
    confidence_dtype: ClassVar[Literal["model", "float32", "float64"]] = "float64"

    block: Count | None = None
    _: KW_ONLY
    threshold: Share | None = 0.6
    threshold_back: Share = 0.9
    at_least: Count = 1
    temperature: NonNegative = 0.0

    def forwards(self, model: Model) -> Forwards:
        from sinkscope.decoding.forwards import ShadowForwards

        return ShadowForwards(model, self.block or self.length)

    @property
    def most_steps(self) -> int:
        return 64 * self.length  # no schedule bounds them: what is taken back is committed again


@register("wino", needs=["threshold"])
class WINORule(CommitRule):
    """Wide in: what is above the threshold, with a cap. Narrow out: the least believed of what stood before."""

    block_only: ClassVar[bool] = True

    def begin(self) -> None:
        self.last = [FIRST_LIMIT] * self.run.canvas.batch  # commits of the step before, by row

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        masks = (confidence > -torch.inf).sum(1).tolist()
        caps = [min(max(int(TAKEN_SHARE * count), LEAST_CAP), MOST_TAKEN) for count in masks]
        counts = [min(self.count(confidence[row], cap), masks[row]) for row, cap in enumerate(caps)]
        taken = self.best(confidence, counts)
        back = torch.zeros_like(taken)
        filled = self.block.inside & ~self.run.canvas.masked_positions() & ~self.run.done.unsqueeze(1)
        belief = self.belief(filled)
        for row in (row for row, count in enumerate(masks) if count):
            back[row, self.doubted(belief[row], filled[row], counts[row], row)] = True
            self.last[row] = counts[row]
        return Picks(taken, reopen=back)

    def belief(self, filled: Tensor) -> Tensor:
        """What the shadow of each filled column gives the token that stands there, float64 [batch, position]."""
        run, start = self.run, self.block.span[0]
        forwards: Any = run.forwards  # a ShadowForwards
        rows, columns = filled.nonzero(as_tuple=True)
        belief = torch.ones(filled.shape, dtype=torch.float64, device=filled.device)
        if len(rows):
            shares = run.logits(forwards.both, rows, run.canvas.width + columns - start).double().softmax(-1)
            tokens = run.canvas.tokens[rows, columns].to(shares.device)
            belief[rows, columns] = shares.gather(1, tokens[:, None])[:, 0].to(belief.device)
        return belief

    def count(self, confidence: Tensor, cap: int) -> int:
        """How many of a row are committed."""
        return min(max(int((confidence > self.settings.threshold).sum()), 1), cap)

    def doubted(self, belief: Tensor, filled: Tensor, taken: int, row: int) -> Tensor:
        """Columns of a row that are masked again."""
        if taken <= 1:
            return belief.new_zeros(0, dtype=torch.int64)
        return least_believed(belief, filled, self.settings.threshold_back, self.last[row] - 1)


@register("wino_port", needs=["threshold"])
class WINOPort(WINORule):
    """d2Cache's: limits by what this step commits."""

    def count(self, confidence: Tensor, cap: int) -> int:
        enough = int((confidence >= self.settings.threshold).sum())
        least: int = self.settings.at_least
        return min(max(enough, least), max(cap, least))

    def doubted(self, belief: Tensor, filled: Tensor, taken: int, row: int) -> Tensor:
        return least_believed(belief, filled, self.settings.threshold_back, max(taken - self.settings.at_least, 0))


def least_believed(belief: Tensor, filled: Tensor, threshold: float, most: int) -> Tensor:
    """Filled columns below the threshold, the least believed `most` of them."""
    columns = ((belief < threshold) & filled).nonzero().flatten()
    return columns[belief[columns].argsort(stable=True)[:most]]
