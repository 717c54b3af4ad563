"""What a commit rule is: made for each block, it says how long to go on and what each step commits; and how rules rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Block, Picks
from sinkscope.errors import DecodeError
from sinkscope.registry import Registry

if TYPE_CHECKING:
    from sinkscope.decoding.loop import Denoiser


class CommitRule:
    """The commits of one block; subclass, write `is_unfinished` and `pick`, and put `@register("name")` above it."""

    block_only: ClassVar[bool] = False  # leaves masks before the block alone
    needs: ClassVar[Sequence[str]] = ()  # settings that it cannot do without
    reads: ClassVar[Sequence[str]] = ()  # settings that it reads where they are given

    def __init__(self, run: Denoiser, block: Block) -> None:
        self.run, self.block = run, block
        self.settings: Any = run.settings  # of the samplers that have it
        self.step = 0  # forwards of this block so far
        self.begin()

    def begin(self) -> None:
        """What it must know of the block before the first step; nothing by default."""

    def is_unfinished(self) -> bool:
        """Whether the block needs another forward."""
        return bool((self.open() & self.block.inside).any())

    def candidate_positions(self) -> Tensor:
        """bool [batch, position]: where candidates are needed; asked once per step, after the forward."""
        return self.open()

    def pick(self, candidates: Tensor, confidence: Tensor) -> Picks:
        """What to do with the candidates [batch, position]; confidence is −∞ where there is none."""
        return Picks(most_confident(confidence, self.counts(confidence), self.run.padding))

    def counts(self, confidence: Tensor) -> list[int]:
        """How many each row commits at this step, the most confident first: for rules that say no more than that."""
        raise TypeError(f"{type(self).__name__} must say what to commit")

    def best(self, score: Tensor, counts: list[int]) -> Tensor:
        """The `counts[row]` best columns of each answer, bool [batch, position]; ties as of a topk over the answer alone."""
        return most_confident(score, counts, torch.tensor(self.run.canvas.answers))

    def open(self) -> Tensor:
        """bool [batch, position]: open positions up to the end of the block, or in it, in rows that go on."""
        here = self.block.inside if self.block_only else self.block.until
        return self.run.canvas.masked_positions() & here & ~self.run.done.unsqueeze(1)


COMMIT_RULES: Registry[type[CommitRule]] = Registry("commit rule", DecodeError)
Rule = TypeVar("Rule", bound=type[CommitRule])


def register(name: str, needs: Sequence[str] = ()) -> Callable[[Rule], Rule]:
    """Make a commit rule known by the name that `Decode.commit` gives; needs: settings that it cannot do without."""

    def add(rule: Rule) -> Rule:
        rule.needs = (*rule.needs, *needs)
        COMMIT_RULES.add(name, rule)
        return rule

    return add


def most_confident(confidence: Tensor, counts: list[int], padding: Tensor) -> Tensor:
    """The `counts[row]` most confident positions of each row → bool [batch, position]; −∞ where none may be committed.

    Ranked by torch.topk over the row without its padding: ties fall as in the authors' code, and as in the row alone. On the
    CPU, because CUDA's topk breaks them otherwise, and confidences in bfloat16 often tie.
    """
    device, confidence = confidence.device, confidence.cpu()
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    for row, (count, start) in enumerate(zip(counts, padding.tolist(), strict=True)):
        open_positions = int((confidence[row] > -torch.inf).sum())
        if count > 0 and open_positions > 0:
            places = confidence[row, start:].topk(min(count, open_positions)).indices
            chosen[row, start + places] = True
    return chosen.to(device, non_blocking=True)
