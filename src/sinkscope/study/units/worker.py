"""What every kind of unit needs on a worker: its model, its prompts as a batch, its condition in force, and what that removed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sinkscope.attention.forward import seeded
from sinkscope.interventions import Active, intervene
from sinkscope.models.load import load
from sinkscope.models.model import Model, pad
from sinkscope.results.accuracy import COUNTED
from sinkscope.study.schema import Study, name_and_mode
from sinkscope.study.units import Prompt, Unit

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
