"""What a decoder gives back: the steps as they happen, and the record of the whole run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """One denoising step, after its commit."""

    index: int
    canvas: Tensor  # [batch, position]
    confidence: Tensor  # [batch, position] float32, NaN where no candidate was looked at
    committed: Tensor  # [batch, position] bool: what this step filled in
    block: tuple[int, int]  # first column of the active block, and the one after its last
    edited: Tensor | None = None  # [batch, position] bool: tokens that this step replaced by others; None: none
    reopened: Tensor | None = None  # [batch, position] bool: tokens that this step took away again; None: none


OnStep = Callable[[Step], object]


@dataclass(frozen=True)
class Decoded:
    """A finished generation of a batch."""

    tokens: Tensor  # [batch, position]: prompt and answer
    history: Tensor | None  # [steps + 1, batch, position]: the canvas before each denoising forward, and the last
    forwards: int  # all forwards: those that only fill a cache too
    returned: tuple[Tensor, ...] = ()  # per row the answer alone, cut where the authors' code cuts it


@dataclass
class History:
    """Collects the canvases of a run (on the CPU) if they are wanted, and hands on its steps."""

    keep: bool
    on_step: OnStep | None = None
    forwards: int = 0
    canvases: list[Tensor] = field(default_factory=list)

    def note(self, canvas: Tensor) -> None:
        """Called before every denoising forward, and at the end."""
        if self.keep:
            self.canvases.append(canvas.cpu().clone())

    def tell(self, step: Step) -> None:
        if self.on_step is not None:
            self.on_step(step)

    def cut(self, width: int) -> None:
        """Leave out the columns of the canvas that were never reached."""
        self.canvases = [canvas[:, :width] for canvas in self.canvases]

    def finish(self, tokens: Tensor, returned: Sequence[Tensor]) -> Decoded:
        history = torch.stack(self.canvases) if self.keep else None
        return Decoded(tokens, history, self.forwards, tuple(returned))
