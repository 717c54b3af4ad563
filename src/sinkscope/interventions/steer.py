"""`Steer`: a direction is added to the residual stream; the control adds a random one of the same length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.selection import Shape
from sinkscope.errors import InterventionError
from sinkscope.fields import among, number
from sinkscope.interventions.activations import (
    AT,
    AT_SETTING,
    LAYERS,
    ActivationIntervention,
    drawn,
    listed,
    positions,
    thawed,
)
from sinkscope.interventions.base import at_least, chosen, one_of
from sinkscope.interventions.hooks import HookContext
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.settings import REQUIRED, Setting, register
from sinkscope.interventions.words import of_random

if TYPE_CHECKING:
    Vector = Tensor | Sequence[float] | str | Path


def _is_vector(value: Any) -> bool:
    if isinstance(value, str):
        return value.endswith(".safetensors")
    return isinstance(value, list) and bool(value) and all(type(one) in (int, float) for one in value)


@register(
    "steer",
    Setting(
        "vector", REQUIRED, _is_vector, "a safetensors file or a list of numbers", sweeps=False, freeze=listed, thaw=thawed,
        place=10, label=lambda vector: Path(vector).stem if isinstance(vector, str) else f"along {len(vector)} numbers",
    ),
    Setting("strength", 1.0, number(-1e6, 1e6), "a number", place=11, label=lambda strength: f"by {strength:g}"),
    Setting("of", "vector", among(("vector", "random")), "vector or random", place=12, quiet=True, label=str),
    AT_SETTING, LAYERS,
    controls=of_random,
)  # fmt: skip
@dataclass(frozen=True)
class Steer(ActivationIntervention):
    """`strength` × `vector` is added to what leaves each of `layers`, at the positions `at`, during `steps`.

    vector: [width], or [layer, width] with a row per layer of the model. It is a tensor, numbers, or a safetensors file that holds
    it as its only tensor. at: all, masked, committed, prompt, or the sinks of the last step. steps: (from, to), half-open;
    whole numbers are forwards, floats shares of the generation, None is open. of="random": a random direction of the same
    length instead, the control.
    """

    vector: Vector
    layers: tuple[int, ...] | None = None
    strength: float = 1.0
    at: str = "all"
    of: Literal["vector", "random"] = "vector"
    seed: int = 0

    def __post_init__(self) -> None:
        given = str(self.vector) if isinstance(self.vector, Path) else self.vector
        if isinstance(given, str):
            if not Path(given).is_file():
                raise InterventionError(f"Expected the vector in a safetensors file, and there is none at {given}.")
        else:
            try:
                made = torch.as_tensor(given, dtype=torch.float32)
            except (TypeError, ValueError, RuntimeError):
                made = torch.zeros(0)
            _check_vector(made, "the numbers given")
            given = listed(made.tolist())
        object.__setattr__(self, "vector", given)
        if type(self.strength) not in (int, float) or not math.isfinite(self.strength):
            raise InterventionError(f"Expected strength to be a number, got {self.strength!r}.")
        one_of("at", self.at, AT)
        one_of("of", self.of, ("vector", "random"))
        at_least("seed", self.seed, 0)
        chosen(self, "layers")

    @property
    def is_noop(self) -> bool:
        return self.strength == 0

    def where(self, shape: Shape) -> list[str]:
        return ["resid_post"] if self.layers is None else [f"layers.{layer}.resid_post" for layer in self.layers]

    def prepare(self, model: Any, memory: Memory) -> None:
        memory.given[id(self)] = _read(self.vector) if isinstance(self.vector, str) else torch.tensor(self.vector)

    def act(self, activation: Tensor, context: HookContext, memory: Memory) -> Tensor | None:
        vector: Tensor = memory.given[id(self)]
        vector = vector[context.layer] if vector.dim() == 2 and context.layer < len(vector) else vector
        if vector.shape != activation.shape[-1:]:
            raise InterventionError(
                f"Expected a vector of {activation.shape[-1]} numbers, the width of this model, or one row of them per layer, "
                f"got {list(vector.shape)}."
            )
        at = positions(self.at, activation, context)
        if at is None:
            return None
        if self.of == "random":
            other = drawn(context, self.seed, len(activation), len(vector), normal=True)[:, None]  # [batch, 1, width]
            vector = other / other.norm(dim=-1, keepdim=True) * vector.norm()
        return activation + at[..., None] * (self.strength * vector).to(activation)


def _read(path: str) -> Tensor:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InterventionError(
            f"Expected the vector in a safetensors file, and {path} cannot be read ({error})."
        ) from None
    if len(tensors) != 1:
        raise InterventionError(f"Expected {path} to hold one tensor, the vector, got {len(tensors)}.")
    return _check_vector(next(iter(tensors.values())).float(), path)


def _check_vector(vector: Tensor, source: str) -> Tensor:
    if vector.dim() not in (1, 2) or not vector.numel() or not bool(torch.isfinite(vector).all()):
        raise InterventionError(
            f"Expected a vector of finite numbers, [width] or [layer, width], got {list(vector.shape)} from {source}."
        )
    return vector
