"""The training loop: one function, one recipe, one folder that can be resumed at any time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lab import checkpoint
from lab.adapt import train_adapter
from lab.adaptation import find_adaptation
from lab.block_recipe import find_block_recipe
from lab.blocks import train_blocks
from lab.build import build_module, forward_inputs, start_from
from lab.data import Coder, chunks_of, rng_of
from lab.errors import TrainingError
from lab.objectives import Rows, Targets, even_ratios, loss_sum, masked, next_token
from lab.optimiser import Optimisation
from lab.probe import sink_statistics
from lab.progress import Progress
from lab.recipe import Recipe, load_recipe
from lab.rollout import quick_accuracy
from sinkscope.tasks.problem import find

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def train(
    recipe: Recipe | str | Path,
    out: Path | str,
    resume: bool = True,
    start: Path | str | None = None,
    quiet: bool = False,
) -> Path:
    """Train a recipe into the folder `out` and give back the exported checkpoint, `out/model`.

    A folder with a saved state goes on from there (resume), to the same weights as an uninterrupted run on the same
    machine and number of threads. A recipe that starts from another one takes that run's model from the folder of its
    name beside `out`, or else from the zoo; `start` names another checkpoint folder.
    """
    if not isinstance(recipe, Recipe):
        adaptation = find_adaptation(recipe)
        if adaptation is not None:
            return train_adapter(adaptation, out, resume, quiet)
        blocks = find_block_recipe(recipe)
        if blocks is not None:
            return train_blocks(blocks, out, resume, None if start is None else Path(start), quiet)
        recipe = load_recipe(recipe)
    for kind in recipe.data.kinds:
        find(kind)  # an unknown kind is told before anything is written
    out = Path(out)
    checkpoint.open_folder(out, recipe, resume)
    run = Run(recipe, out, Path(start) if start is not None else None)
    run.to_the_end(Progress(recipe, quiet))
    from lab.export import export

    return export(recipe, run.optimisation.mean_weights(), run.tokenizer, out / "model")


class Run:
    """A run in its folder: module, optimiser and how far it is."""

    def __init__(self, recipe: Recipe, out: Path, start: Path | None = None) -> None:
        self.recipe, self.out = recipe, out
        self.tokenizer = _tokenizer(recipe, out)
        self.coder = Coder.of(self.tokenizer, recipe.data.begin)
        self.mask_id = self.tokenizer.get_vocab()["<|mdm_mask|>"]
        self.module = build_module(recipe, len(self.tokenizer))
        state = checkpoint.load_state(out)
        if state is None and recipe.start is not None:
            from lab.export import weights_to_start_from

            weights, names = weights_to_start_from(recipe, start, out)
            known = self.tokenizer.get_vocab()
            if any(known.get(token) != place for token, place in names.items()):
                raise TrainingError(
                    f"the checkpoint that {recipe.name} starts from has other token ids; train that one again."
                )
            with torch.no_grad():
                start_from(self.module, weights)
        self.optimisation = Optimisation(self.module, recipe.optimiser)
        self.step, self.seconds = 0, 0.0
        if state is not None:
            self.step, self.seconds, tensors = state
            self._restore(tensors)
        checkpoint.cut_curve(out, self.step)

    def _tensors(self) -> dict[str, Tensor]:
        weights = {f"weight.{n}": p for n, p in self.optimisation.parameters.items()}
        return {**weights, **self.optimisation.state}

    @torch.no_grad()
    def _restore(self, tensors: dict[str, Tensor]) -> None:
        mine = self._tensors()
        if set(mine) != set(tensors) or any(mine[n].shape != tensors[n].shape for n in mine):
            raise TrainingError(f"the state in {self.out} is of another model; delete it to start again.")
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])

    def to_the_end(self, progress: Progress) -> None:
        """Step until the recipe's last step; save, probe and log on the way."""
        recipe = self.recipe
        with progress:
            while self.step < recipe.steps:
                started = time.process_time()  # of the core: what else runs on the machine does not count
                loss, norm, tokens = self.one_step()
                self.seconds += time.process_time() - started
                progress.update(self.step, loss, tokens, time.monotonic())
                self._record(norm, progress)
        self.save()

    def one_step(self) -> tuple[float, float, int]:
        """One update from the problems of this step; loss, gradient norm and number of tokens."""
        recipe, total, tokens = self.recipe, 0.0, 0
        chunks = chunks_of(recipe, self.coder, self.step)
        rng = rng_of(recipe.seed, self.step, 2)
        ratios = even_ratios(recipe.batch, rng, recipe.objective.t_min)
        self.module.train()
        for number, rows in enumerate(chunks):
            targets = self._targets(rows, ratios[number * len(rows) : (number + 1) * len(rows)], rng)
            ids, seen = forward_inputs(recipe, len(self.tokenizer), targets.ids)
            if ids.shape[1] > targets.ids.shape[1]:
                targets = _with_front(targets, ids)
            loss = loss_sum(self.module, targets, recipe.shift, seen) / recipe.batch
            loss.backward()
            total += float(loss.detach())
            tokens += ids.numel()
        if not total == total:  # noqa: PLR0124 - NaN
            raise TrainingError(f"the loss is not a number at step {self.step}; lower the rates in the recipe.")
        norm = self.optimisation.step(self.step, recipe.steps)
        self.step += 1
        return total, norm, tokens

    def _targets(self, rows: Rows, ratios: Any, rng: Any) -> Targets:
        if self.recipe.causal:
            return next_token(rows, self.recipe.objective)
        return masked(rows, ratios, self.recipe.objective, self.mask_id, rng)

    def _record(self, norm: float, progress: Progress) -> None:
        recipe, step = self.recipe, self.step
        values: dict[str, Any] = {}
        if step % recipe.log_every == 0 or step == recipe.steps:
            values |= {"loss": round(progress.loss, 5), "norm": round(norm, 4), "seconds": round(self.seconds, 1)}
        probing = step % recipe.probe_every == 0 or step in (1, recipe.steps)
        testing = step % recipe.accuracy_every == 0 or step == recipe.steps
        if probing or testing:
            with self.mean_weights():
                if probing:
                    values |= sink_statistics(self.module, recipe, self.coder, self.mask_id)
                if testing:
                    values["accuracy"] = quick_accuracy(self.module, recipe, self.coder, self.mask_id)
        if values:
            checkpoint.append_curve(self.out, {"step": step, **values})
            progress.note(step, values)
        if step % recipe.save_every == 0:
            self.save()

    def save(self) -> None:
        """Write the state of this step."""
        checkpoint.save_state(self.out, self.step, self.seconds, self._tensors())

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

    from lab.spelling import tokenizer_of

    folder = out / "tokenizer"
    if not (folder / "tokenizer_config.json").is_file():
        tokenizer_of(recipe.data.spelling, pictures=recipe.family == "mmada").save_pretrained(folder)
    kept: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(folder)
    return kept
