"""What every kind of unit needs on a worker: its model, its prompts as a batch, its condition in force, and what that removed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.forward import seeded
from sinkscope.decoding import resolve_settings
from sinkscope.decoding.cost import Workload
from sinkscope.decoding.settings import Decode
from sinkscope.errors import CheckpointError, DecodeError, StudyError
from sinkscope.interventions import Active, intervene
from sinkscope.models.load import load
from sinkscope.models.model import Model, pad
from sinkscope.results.accuracy import COUNTED
from sinkscope.study.schema import Study, name_and_mode
from sinkscope.study.units import Job, ModelInfo, Prompt, Unit, UnitKind, conditions_for

IN_MEMORY: dict[str, Model] = {}  # of the run at hand, by the names in its study; units in other processes have none


@contextmanager
def in_memory(models: Mapping[str, Model]) -> Iterator[None]:
    """Units of these names take these models."""
    IN_MEMORY.update(models)
    try:
        yield
    finally:
        for name in models:
            IN_MEMORY.pop(name, None)


def model_for(study: Study, unit: Unit) -> Model:
    """The model of the unit at hand; the weights before it are let go."""
    if unit.model in IN_MEMORY:
        return IN_MEMORY[unit.model]
    name, mode = name_and_mode(unit.model)
    model = weights_of(name, study.dtype, study.device)
    return model if mode is None else model.in_mode(mode)


def encode_prompt(model: Model, prompt: Prompt) -> Tensor:
    """[1, position]: a prompt that is laid out already, or text under the model's own template."""
    return torch.tensor([prompt.ids]) if prompt.ids else model.encode(prompt.text)


def encode_batch(model: Model, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
    """Padded ids and their mask, [batch, position] each."""
    return pad([encode_prompt(model, prompt) for prompt in prompts], model)


def row_seeds(study: Study, unit: Unit, numbers: Sequence[int]) -> tuple[int, ...]:
    """Random keys are drawn again for every problem, and are the same for a problem in whatever chunk it stands."""
    place = next((place for place, task in enumerate(study.tasks) if task.name == unit.task), 0)
    return tuple(place * 1_000_003 + number for number in numbers)


@contextmanager
def apply_condition(
    study: Study, unit: Unit, model: Model, numbers: Sequence[int], times: int = 1
) -> Iterator[EffectAfterPrefill]:
    """The unit's condition in force, with the random keys of these problems, each so many rows; counts what it takes."""
    change = unit.condition.seeded(study.seed)
    put_in = nullcontext() if change is None else intervene(model, change)
    with seeded(row_seeds(study, unit, numbers) * times), put_in as active:
        yield EffectAfterPrefill(active)


@functools.lru_cache(maxsize=1)
def weights_of(name: str, dtype: str | None, device: str | None) -> Model:
    """The model of that name; the one before it is let go."""
    return load(name, dtype=dtype, device=device)


@dataclass
class EffectAfterPrefill:
    """Keys and attention that were there and that an intervention took, from the second forward on."""

    active: Active | None = None
    first: dict[str, float] = field(default_factory=dict)  # what it had counted when the first forward was over

    def begin(self) -> None:
        if self.active is not None:
            self.first = dict(vars(self.active.effect))

    def effect(self) -> dict[str, float]:
        if self.active is None:
            return {}
        now = vars(self.active.effect)
        moved = {"moved": self.active.effect.moved_share} if now["moved_seen"] else {}
        return {**{name: now[name] - self.first.get(name, 0) for name in COUNTED}, "leak": now["leak"], **moved}


# ---- a unit that asks what a model is


class FactsKind(UnitKind):
    """Settings that do not fit a model are told here, before anything runs."""

    name = "facts"
    order = 0

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        return []  # asked before there is a plan

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        return []  # the model is loaded, and not run

    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        """A model that is measured by likelihood is an extra: one that is not installed is reported, and no error."""
        unit = job.unit
        try:
            model = model_for(study, unit)
            model.require_tokenizer()
        except CheckpointError as error:
            if unit.model not in study.models:
                return {"left_out": str(error)}
            raise
        if unit.model in study.likelihood.models and not model.causal:
            raise StudyError(f"Expected autoregressive models in likelihood, got {unit.model}; put it under forced.")
        identity = {**model.identity(), "name": unit.shown}
        info = model_info(study, model, unit.model, identity)
        for condition in conditions_for(study, info) if info.answers else ():
            for setting in info.settings if condition.decode else ():
                try:
                    Decode.from_dict({**info.settings[setting], **condition.decode})
                except DecodeError as error:
                    told = f"The condition {condition.label} does not go with {info.asked}: {str(error).rstrip('.')}"
                    raise StudyError(f"{told}; leave one of them out, or say for which models it is (for:).") from None
        return info.to_dict()


def model_info(study: Study, model: Model, asked: str, identity: dict[str, Any]) -> ModelInfo:
    """What a plan must know of a model; it need not have weights."""
    likelihood = asked in (*study.likelihood.models, *study.forced.models)
    settings: dict[str, dict[str, Any]] = {}
    for label, words in [("", {"length": study.likelihood.scored})] if likelihood else study.settings():
        made = resolve_settings(model.defaults, model, 0, {**words, "noise": "per_row"}).to_dict()
        if made not in settings.values():  # decoding from left to right has no blocks: a sweep of them is one point
            settings[label] = made
    traced_only = asked in study.trace.models
    return ModelInfo(
        asked, identity["name"], model.causal, model.family.name, identity, settings, likelihood, traced_only
    )
