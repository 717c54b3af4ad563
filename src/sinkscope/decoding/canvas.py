"""The canvas: which positions are open, and what a step may change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Picks:
    """What a commit rule wants done at one step; each bool [batch, position]."""

    commit: Tensor  # open positions that take their candidate
    edit: Tensor | None = None  # known positions that are replaced by their candidate
    reopen: Tensor | None = None  # known positions that are opened again


@dataclass
class Canvas:
    """A canvas of masks; all tensors are [batch, position]."""

    tokens: Tensor
    real: Tensor  # bool: not padding
    given: Tensor  # bool: what the prompt holds
    blank: int  # the mask token
    answers: list[int]  # column where each row's answer begins
    length: int  # tokens of the answer
    pad: int | None = None  # dllm's block sampler: padding is whatever holds this id, generated or not

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    def open(self) -> Tensor:
        """bool: positions without a token yet (a mask in the prompt is open too)."""
        return (self.tokens == self.blank) & self.real

    def apply(self, candidates: Tensor, picks: Picks) -> Tensor:
        """Do what was picked; returns what was an edit: known positions whose token is another one now."""
        before, known = self.tokens, ~self.open()
        written = picks.commit if picks.edit is None else picks.commit | picks.edit
        self.tokens = torch.where(written, candidates, self.tokens)
        if picks.reopen is not None:
            self.tokens = self.tokens.masked_fill(picks.reopen, self.blank)
        return known & (self.tokens != before)

    def hide_padding(self) -> None:
        """A padding token that was generated counts as padding from now on, where padding is known by its id."""
        if self.pad is not None:
            self.real = self.real & (self.tokens != self.pad)

    def padding(self) -> Tensor:
        """[batch] on the CPU: padded columns at the left of each row."""
        return (self.real.cumsum(1) == 0).sum(1).cpu()


@dataclass(frozen=True)
class Block:
    """The columns that are worked on now; they may differ from row to row."""

    span: tuple[int, int]  # first column over all rows, and the one after the last
    inside: Tensor  # bool [batch, position]
    until: Tensor  # bool [batch, position]: everything up to the block's end
