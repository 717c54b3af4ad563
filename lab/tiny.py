"""The tiny family: every weight of a small transformer is trained, on next tokens or on masked ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lab.build import build_module, forward_inputs, start_from
from lab.data import Coder, chunks_of, rng_of
from lab.errors import TrainingError
from lab.export import export, weights_to_start_from
from lab.loop import Run, Step
from lab.objectives import Rows, Targets, even_ratios, loss_sum, masked, next_token
from lab.optimiser import Optimisation
from lab.probe import sink_statistics
from lab.progress import Progress
from lab.recipe import Recipe
from lab.rollout import quick_accuracy
from lab.spelling import tokenizer_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TinyRun(Run):
    """A recipe that starts from another one takes that run's model from the folder of its name beside `out`.

    Where there is none, it takes the zoo's. `start` names another checkpoint folder.
    """

    def __init__(self, recipe: Recipe, out: Path, start: Path | None = None) -> None:
        super().__init__(recipe, out)
        self.tokenizer = _tokenizer(recipe, out)
        self.coder = Coder.of(self.tokenizer, recipe.data.begin)
        self.mask_id = self.tokenizer.get_vocab()["<|mdm_mask|>"]
        self.module = build_module(recipe, len(self.tokenizer))
        if self.is_fresh and recipe.start is not None:
            weights, names = weights_to_start_from(recipe, start, out)
            known = self.tokenizer.get_vocab()
            if any(known.get(token) != place for token, place in names.items()):
                raise TrainingError(
                    f"the checkpoint that {recipe.name} starts from has other token ids; train that one again."
                )
            with torch.no_grad():
                start_from(self.module, weights)
        self.optimisation = Optimisation(self.module, recipe.optimiser)
        self.resume()

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        recipe = self.recipe
        rng = rng_of(recipe.seed, self.step, 2)
        ratios = even_ratios(recipe.batch, rng, recipe.objective.t_min)
        for number, rows in enumerate(chunks_of(recipe, self.coder, self.step)):
            targets = self._targets(rows, ratios[number * len(rows) : (number + 1) * len(rows)], rng)
            ids, seen = forward_inputs(recipe, len(self.tokenizer), targets.ids)
            if ids.shape[1] > targets.ids.shape[1]:
                targets = _with_front(targets, ids)
            yield loss_sum(self.module, targets, recipe.shift, seen) / recipe.batch, ids.numel()

    def _targets(self, rows: Rows, ratios: Any, rng: Any) -> Targets:
        if self.recipe.causal:
            return next_token(rows, self.recipe.objective)
        return masked(rows, ratios, self.recipe.objective, self.mask_id, rng)

    def record(self, found: Step, progress: Progress) -> dict[str, Any]:
        """Loss, norm and time; now and then how the sinks are, and how many problems are solved."""
        recipe, step = self.recipe, self.step
        values: dict[str, Any] = {}
        if step % recipe.log_every == 0 or step == recipe.steps:
            values |= {"loss": round(progress.loss, 5), "norm": round(found.norm, 4), "seconds": round(self.seconds, 1)}
        probing = step % recipe.probe_every == 0 or step in (1, recipe.steps)
        testing = step % recipe.accuracy_every == 0 or step == recipe.steps
        if probing or testing:
            with self.mean_weights():
                if probing:
                    values |= sink_statistics(self.module, recipe, self.coder, self.mask_id)
                if testing:
                    values["accuracy"] = quick_accuracy(self.module, recipe, self.coder, self.mask_id)
        return values

    def export(self, folder: Path) -> Path:
        """The running mean of the weights in its family's own format."""
        return export(self.recipe, self.optimisation.mean_weights(), self.tokenizer, folder)

    @contextmanager
    def mean_weights(self) -> Iterator[nn.Module]:
        """The module with the running mean of its weights, for as long as the `with` lasts."""
        own = {name: parameter.detach().clone() for name, parameter in self.optimisation.parameters.items()}
        self.module.eval()
        try:
            self._put(self.optimisation.mean_weights())
            yield self.module
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.optimisation.parameters.items():
            parameter.copy_(weights[name])


def _with_front(targets: Targets, ids: Tensor) -> Targets:
    """Labels and weights for one more token in front, which nobody has to predict."""
    front = torch.zeros_like(targets.weight[:, :1])
    return Targets(
        ids,
        ids.clone().index_copy_(1, torch.arange(1, ids.shape[1]), targets.labels),
        torch.cat([front, targets.weight], 1),
    )


def _tokenizer(recipe: Recipe, out: Path) -> PreTrainedTokenizerBase:
    """The run's own tokenizer: kept in its folder, so that a later change of the vocabulary cannot move its ids."""
    from transformers import PreTrainedTokenizerFast

    folder = out / "tokenizer"
    if not (folder / "tokenizer_config.json").is_file():
        tokenizer_of(recipe.data.spelling, pictures=recipe.family == "mmada").save_pretrained(folder)
    kept: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(folder)
    return kept
