"""What an intervention on activations is: at its places it says what stands there instead, step by step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.attention.capture import Shape
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import Intervention
from sinkscope.interventions.hooks import HookContext
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.settings import Setting

PRIME = 1_000_003
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


def _layers(layers: tuple[int, ...]) -> str:
    return f"layers {','.join(map(str, layers))}"


LAYERS = Setting("layers", None, place=60, quiet=True, sweeps=False, label=_layers)


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
        mixed = ((seed * PRIME + row) * PRIME + layer) % (2**63 - 1)
        return make(size, generator=torch.Generator().manual_seed(mixed))

    if seeds is None:
        return draw(0).expand(rows, size)
    return torch.stack([draw(seeds[row % len(seeds)]) for row in range(rows)])  # guidance copies the rows
