"""The training loop: one run in one folder, which can be resumed at any time; a subclass says what is learned."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lab import checkpoint
from lab.errors import TrainingError
from lab.optimiser import Optimisation
from lab.progress import Progress


class Step(NamedTuple):
    """One update."""

    loss: float
    norm: float  # of the gradients, before they were clipped
    tokens: int


class Run(ABC):
    """A run in its folder: module, optimiser and how far it is.

    A subclass is an objective. It makes `module` and `optimisation`, calls `resume`, and gives the loss of every chunk
    of a step. `counts` are further numbers that a resumed run needs, as tensors of no dimension.
    """

    recipe: Any
    module: Any
    optimisation: Optimisation

    def __init__(self, recipe: Any, out: Path) -> None:
        self.recipe, self.out = recipe, out
        self.step, self.seconds = 0, 0.0
        self.counts: dict[str, Tensor] = {}
        self._saved = checkpoint.load_state(out)

    @property
    def is_fresh(self) -> bool:
        """Whether the folder holds no state to resume from."""
        return self._saved is None

    @abstractmethod
    def losses(self) -> Iterator[tuple[Tensor, int]]:
        """The loss of each chunk of this step, divided so that they add up to the step's, and the tokens that it read."""

    @abstractmethod
    def record(self, found: Step, progress: Progress) -> dict[str, Any]:
        """What the curve says of the step that was just made; nothing where no line is due."""

    @abstractmethod
    def export(self, folder: Path) -> Path:
        """Write what was learned, as a checkpoint that sk.load takes."""

    def updated(self) -> None:  # noqa: B027 - most objectives hold nothing that follows from the parameters
        """The parameters have changed."""

    def resume(self) -> None:
        """Take up the saved state, if there is one."""
        if self._saved is not None:
            self.step, self.seconds, tensors = self._saved
            self._restore(tensors)
            self._saved = None
        self.updated()
        checkpoint.cut_curve(self.out, self.step)

    def to_the_end(self, progress: Progress) -> None:
        """Step until the recipe's last step; save and log on the way."""
        with progress:
            while self.step < self.recipe.steps:
                started = time.process_time()  # of the core: what else runs on the machine does not count
                found = self.one_step()
                self.seconds += time.process_time() - started
                progress.update(self.step, found.loss, found.tokens, time.monotonic())
                values = self.record(found, progress)
                if values:
                    checkpoint.append_curve(self.out, {"step": self.step, **values})
                    progress.note(self.step, values)
                if self.step % self.recipe.save_every == 0:
                    self.save()
        self.save()

    def one_step(self) -> Step:
        """One update from the problems of this step, which depend on the seed and the step alone."""
        total, tokens = 0.0, 0
        self.module.train()
        for loss, read in self.losses():
            loss.backward()
            total += float(loss.detach())
            tokens += read
        if total != total:  # noqa: PLR0124 - NaN
            raise TrainingError(f"the loss is not a number at step {self.step}; lower the rates in the recipe.")
        norm = self.optimisation.step(self.step, self.recipe.steps)
        self.updated()
        self.step += 1
        return Step(total, norm, tokens)

    def save(self) -> None:
        """Write the state of this step."""
        checkpoint.save_state(self.out, self.step, self.seconds, self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        weights = {f"weight.{name}": part for name, part in self.optimisation.parameters.items()}
        return {**weights, **self.optimisation.state, **self.counts}

    @torch.no_grad()
    def _restore(self, tensors: dict[str, Tensor]) -> None:
        mine = self._tensors()
        if set(mine) != set(tensors) or any(mine[name].shape != tensors[name].shape for name in mine):
            raise TrainingError(f"the state in {self.out} is of another model; delete it to start again.")
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])
