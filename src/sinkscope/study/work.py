"""What a unit of work does. Every engine calls `perform`; its result depends on nothing but study and unit."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding import decode, fitted
from sinkscope.decoding.run import Step
from sinkscope.errors import CheckpointError, StudyError
from sinkscope.interventions import Active, intervene
from sinkscope.models.base import Model, pad
from sinkscope.models.load import load
from sinkscope.settings.decode import Decode
from sinkscope.study.plan import Study
from sinkscope.study.units import Facts, Unit
from sinkscope.tasks import Problem, problems


@functools.lru_cache(maxsize=1)
def model_of(name: str, dtype: str | None, device: str | None) -> Model:
    """The model of the unit at hand; the one before it is let go."""
    return load(name, dtype=dtype, device=device)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums are added in another order by more threads: with one, any number of workers gives the same bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def facts(study: Study, unit: Unit) -> dict[str, Any]:
    """What the plan must know of a model; settings that do not fit it are told here, before anything runs.

    A model that is measured by likelihood is an extra: one that is not installed is no error, but said.
    """
    likelihood = unit.model not in study.models
    try:
        with one_thread():
            model = model_of(unit.model, study.dtype, study.device)
            model.require_tokenizer()
    except CheckpointError as error:
        if likelihood:
            return {"left_out": str(error)}
        raise
    if likelihood and not model.causal:
        raise StudyError(
            f"The likelihood of text is measured of autoregressive models, and {unit.model} is a diffusion model."
        )
    settings: dict[str, dict[str, Any]] = {}
    for label, words in [("", {"length": study.likelihood.scored})] if likelihood else study.settings():
        made = fitted(model.defaults, model, 0, {**words, "noise": "per_row"}).to_dict()
        if (
            made not in settings.values()
        ):  # left-to-right decoding has no blocks and steps: a sweep of them is one point
            settings[label] = made
    identity = {**model.identity(), "name": unit.shown}
    return Facts(unit.model, unit.shown, model.causal, model.family, identity, settings, likelihood).to_dict()


def perform(study: Study, unit: Unit, folder: Path) -> dict[str, Any]:
    """Run one unit; plain data that JSON holds exactly. Traces that are kept go to `folder`/traces."""
    if unit.kind == "facts":
        return facts(study, unit)
    with one_thread():
        model = model_of(unit.model, study.dtype, study.device)
        if unit.kind == "answers":
            return answers(study, unit, model)
        if unit.kind == "trace":
            from sinkscope.study.measure import traced

            return traced(study, unit, model, folder)
        if unit.kind == "mechanism":
            from sinkscope.study.mechanism import mechanism

            return mechanism(study, unit, model)
        from sinkscope.study.likelihood import likelihood

        return likelihood(study, unit, model)


def asked(study: Study, unit: Unit, limit: int | None = None) -> list[tuple[int, Problem]]:
    """The unit's problems with their numbers; chunks are of like length, so that little is padded."""
    task = next(task for task in study.tasks if task.name == unit.task)
    everything = _drawn(task.name, limit or task.problems, study.split, study.seed, task.difficulty)
    return everything[unit.first : unit.last]


@functools.lru_cache(maxsize=32)
def _drawn(name: str, count: int, split: str, seed: int, difficulty: int | None) -> list[tuple[int, Problem]]:
    drawn = list(enumerate(problems(name, n=count, split=split, seed=seed, difficulty=difficulty)))
    return sorted(drawn, key=lambda item: (len(item[1].prompt), item[0]))


def batch_of(model: Model, prompts: list[str]) -> tuple[Tensor, Tensor]:
    return pad([model.encode(prompt) for prompt in prompts], model)


def seed_of(study: Study, unit: Unit) -> int:
    """Random keys differ from chunk to chunk: within one, all problems share a draw a step, layer and head."""
    return study.seed * 1009 + unit.chunk


@dataclass
class Commits:
    """How sure the model was of what it committed, row by row."""

    total: Tensor | None = None
    count: Tensor | None = None
    first: dict[str, float] = field(default_factory=dict)  # what an intervention had counted after the first forward
    active: Active | None = None

    def __call__(self, step: Step) -> None:
        sure = step.confidence.double().masked_fill(~step.committed, 0.0).nan_to_num(0.0).sum(1).cpu()
        number = step.committed.sum(1).cpu()
        self.total = sure if self.total is None else self.total + sure
        self.count = number if self.count is None else self.count + number
        if step.index == 0 and self.active is not None:
            self.first = dict(vars(self.active.effect))

    def means(self) -> list[float]:
        assert self.total is not None and self.count is not None
        means: list[float] = (self.total / self.count.clamp(min=1)).tolist()
        return means

    def effect(self) -> dict[str, float]:
        """Keys and attention that were there and that were taken, from the second forward on."""
        if self.active is None:
            return {}
        now = vars(self.active.effect)
        taken = {name: now[name] - self.first.get(name, 0) for name in ("keys", "keys_seen", "mass", "mass_seen")}
        return {**taken, "leak": now["leak"]}


def answers(study: Study, unit: Unit, model: Model) -> dict[str, Any]:
    """Answer a chunk of problems under the unit's condition."""
    chunk = asked(study, unit)
    ids, mask = batch_of(model, [problem.prompt for _, problem in chunk])
    commits = Commits()
    intervention = unit.condition.intervention(seed_of(study, unit), model.causal)
    settings = Decode.from_dict(dict(unit.decode))
    if intervention is None:
        done = decode(model, ids, settings, attention_mask=mask, history=False, on_step=commits)
    else:
        with intervene(model, intervention) as active:
            commits.active = active
            done = decode(model, ids, settings, attention_mask=mask, history=False, on_step=commits)
    rows = []
    for (number, problem), tokens, sure in zip(
        chunk, done.tokens[:, ids.shape[1] :].cpu(), commits.means(), strict=True
    ):
        said = model.decode_text(tokens)
        right = _right(problem, said)
        rows.append({"problem": number, "correct": right, "text": said, "tokens": tokens.tolist(), "confidence": sure})
    return {"rows": rows, "effect": commits.effect(), "forwards": done.forwards}


def _right(problem: Problem, said: str) -> bool:
    """Whether the answer is right; the same answer to the same problem is judged once (a program's verdict takes time)."""
    known = _verdicts.get((problem.prompt, said))
    if known is None:
        known = _verdicts[problem.prompt, said] = bool(problem.check(said))
    return known


_verdicts: dict[tuple[str, str], bool] = {}
