"""What an intervention on activations is: at its places it says what stands there instead, step by step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.attention.selection import Shape
from sinkscope.errors import InterventionError
from sinkscope.fields import among
from sinkscope.interventions.base import Intervention
from sinkscope.interventions.hooks import HookContext
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.settings import Setting

PRIME = 1_000_003
AT = ("all", "masked", "committed", "prompt", "sinks")


class ActivationIntervention(Intervention):
    """Subclasses say where they act, and what they make of an activation there; `steps` says when."""

    def change(self, call: Call, memory: Memory) -> Change | None:
        return None  # attention itself is left alone

    @abstractmethod
    def where(self, shape: Shape) -> list[str]:
        """The places, as `hook` takes them."""

    @abstractmethod
    def act(self, activation: Tensor, context: HookContext, memory: Memory) -> Tensor | None:
        """What stands in the activation's place; None leaves it."""


def listed(value: Any) -> Any:
    """Lists as tuples, all the way down: a value that can be compared and hashed."""
    return tuple(map(listed, value)) if isinstance(value, list | tuple) else value


def thawed(value: Any) -> Any:
    return list(map(thawed, value)) if isinstance(value, tuple) else value


def numbers_setting(name: str, default: Any, place: int, label: Any) -> Setting:
    """A list of whole numbers, which is one value and no sweep."""

    def fits(value: Any) -> bool:
        return isinstance(value, list) and bool(value) and all(type(one) is int and one >= 0 for one in value)

    return Setting(
        name, default, fits, "a list of whole numbers from 0 on", sweeps=False,
        quiet=default is None, freeze=listed, thaw=thawed, place=place,
        label=label,
    )  # fmt: skip


LAYERS = numbers_setting("layers", None, 60, lambda layers: f"layers {','.join(map(str, layers))}")
AT_SETTING = Setting("at", "all", among(AT), ", ".join(AT), place=55, quiet=True, label=lambda at: f"at {at}")


def positions(at: str, activation: Tensor, context: HookContext) -> Tensor | None:
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
