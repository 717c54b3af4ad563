"""What an intervention on activations is: at its places it says what stands there instead, step by step.

`Steer` is one: a direction is added to the residual stream; the control adds a random one of the same length.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.attention.capture import Shape
from sinkscope.attention.counter import mixed
from sinkscope.errors import InterventionError
from sinkscope.fields import FromZero, frozen, number
from sinkscope.interventions.base import Intervention, Layers
from sinkscope.interventions.hooks import HookContext
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.settings import REQUIRED, Setting, of_random, register

if TYPE_CHECKING:
    Vector = Tensor | Sequence[float] | str | Path
At = Literal["all", "masked", "committed", "prompt", "sinks"]


class ActivationIntervention(Intervention):
    """Subclasses say where they act, and what they make of an activation there; `steps` says when."""

    def change(self, call: Call, memory: Memory) -> Change | None:
        return None  # attention itself is left alone

    def where(self, shape: Shape) -> list[str]:
        """The places, as `hook` takes them: behind each of `layers`, unless a subclass says otherwise."""
        layers = getattr(self, "layers", None)
        return ["resid_post"] if layers is None else [f"layers.{layer}.resid_post" for layer in layers]

    @abstractmethod
    def act(self, activation: Tensor, context: HookContext, memory: Memory) -> Tensor | None:
        """What stands in the activation's place; None leaves it."""


LAYERS = Setting(
    "layers", None, place=60, quiet=True, sweeps=False, label=lambda layers: f"layers {','.join(map(str, layers))}"
)


def positions(at: At, activation: Tensor, context: HookContext) -> Tensor | None:
    """bool [batch, position]: where to act; None for nowhere."""
    if context.groups is None:
        if at != "all":
            raise InterventionError(
                f"at={at!r} needs a decoder that knows its groups of positions; generate with sk.decode."
            )
        return torch.ones(activation.shape[:2], dtype=torch.bool, device=activation.device)
    if at == "sinks":
        found = context.sinks
        return None if found is None else found[:, context.columns]
    wanted: Tensor = context.groups >= 0 if at == "all" else getattr(context, at)
    return wanted.to(activation.device)


def drawn(context: HookContext, seed: int, rows: int, size: int, normal: bool = False, layer: int = 0) -> Tensor:
    """Random numbers [batch, size]: drawn for each row where the decoder names a seed per row.

    layer: 0 draws the same for all layers, since what is written into the residual stream adds up along them.
    """
    seeds = None if context.forward is None else context.forward.row_seeds
    make = torch.randn if normal else torch.rand

    def draw(row: int) -> Tensor:
        return make(size, generator=torch.Generator().manual_seed(mixed(seed, row, layer)))

    if seeds is None:
        return draw(0).expand(rows, size)
    return torch.stack([draw(seeds[row % len(seeds)]) for row in range(rows)])  # guidance copies the rows


# ---- a direction is added to the residual stream ----


def _is_vector(value: Any) -> bool:
    if isinstance(value, str):
        return value.endswith(".safetensors")
    return isinstance(value, list) and bool(value) and all(type(one) in (int, float) for one in value)


@register(
    "steer",
    Setting(
        "vector", REQUIRED, _is_vector, "a safetensors file or a list of numbers", sweeps=False, place=10,
        label=lambda vector: Path(vector).stem if isinstance(vector, str) else f"along {len(vector)} numbers",
    ),
    Setting("strength", 1.0, place=11, label="by {:g}".format),
    Setting("of", "vector", place=12, quiet=True),
    Setting("at", "all", place=55, quiet=True, label="at {}".format),
    LAYERS,
    controls=of_random,
)  # fmt: skip
@dataclass(frozen=True)
class Steer(ActivationIntervention, noop={"strength": 0}):
    """`strength` × `vector` is added to what leaves each of `layers`, at the positions `at`, during `steps`.

    vector: [width], or [layer, width] with a row per layer of the model. It is a tensor, numbers, or a safetensors file that holds
    it as its only tensor. at: all, masked, committed, prompt, or the sinks of the last step. steps: (from, to), half-open;
    whole numbers are forwards, floats shares of the generation, None is open. of="random": a random direction of the same
    length instead, the control.
    """

    vector: Vector
    layers: Layers | None = None
    strength: Annotated[float, number(-1e6, 1e6)] = 1.0
    at: At = "all"
    of: Literal["vector", "random"] = "vector"
    seed: FromZero = 0

    def __post_init__(self) -> None:
        super().__post_init__()
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
            given = frozen(made.tolist())
        object.__setattr__(self, "vector", given)

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
