"""`ZeroAttention`: heads that hand nothing on; the control takes other heads of the same layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.listeners import Caught
from sinkscope.attention.selection import Shape, check
from sinkscope.errors import InterventionError
from sinkscope.fields import among
from sinkscope.interventions.activations import (
    ActivationIntervention,
    drawn,
    listed,
    thawed,
)
from sinkscope.interventions.base import at_least, one_of
from sinkscope.interventions.hooks import HookContext
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.settings import REQUIRED, Setting, register
from sinkscope.interventions.words import of_random


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and all(type(one) is int and one >= 0 for one in pair)
        for pair in value
    )


@register(
    "zero_attention",
    Setting(
        "heads", REQUIRED, lambda value: bool(value) and _is_pairs(value), "a list of [layer, head]", sweeps=False, freeze=listed,
        thaw=thawed, place=10, label=lambda heads: ",".join(f"{layer}.{head}" for layer, head in heads),
    ),
    Setting("of", "heads", among(("heads", "random")), "heads or random", place=12, quiet=True, label=str),
    controls=of_random,
)  # fmt: skip
@dataclass(frozen=True)
class ZeroAttention(ActivationIntervention):
    """What these heads put out is 0 at every position.

    heads: pairs of layer and head, such as ((3, 0), (4, 1)). of="random": as many other heads of the same layers, the control.
    """

    heads: tuple[tuple[int, int], ...]
    of: Literal["heads", "random"] = "heads"
    seed: int = 0

    def __post_init__(self) -> None:
        if not _is_pairs(self.heads):
            raise InterventionError(
                f"Expected heads as pairs of layer and head, such as ((3, 0),), got {self.heads!r}."
            )
        object.__setattr__(self, "heads", listed(self.heads))
        one_of("of", self.of, ("heads", "random"))
        at_least("seed", self.seed, 0)

    @property
    def is_noop(self) -> bool:
        return not self.heads

    def check(self, shape: Shape) -> None:
        check("layers", [layer for layer, _ in self.heads], shape.layers, shape.name, InterventionError)
        check("heads", [head for _, head in self.heads], shape.heads, shape.name, InterventionError)

    def check_seen(self, caught: Caught, name: str) -> None:
        """Places are looked up when the `with` is entered: nothing is left to find out."""

    def where(self, shape: Shape) -> list[str]:
        return [f"layers.{layer}.z" for layer in sorted({layer for layer, _ in self.heads})]

    def act(self, activation: Tensor, context: HookContext, memory: Memory) -> Tensor | None:
        rows, _, heads, _ = activation.shape
        named = torch.zeros(heads, dtype=torch.bool)
        named[[head for layer, head in self.heads if layer == context.layer]] = True
        picked = named.expand(rows, heads)
        if self.of == "random":
            count = int(named.sum())
            if 2 * count > heads:
                raise InterventionError(
                    f"Expected at most half of a layer's {heads} heads with of='random', got {count}."
                )
            chance = drawn(context, self.seed, rows, heads, layer=context.layer).masked_fill(named, -1.0)
            picked = torch.zeros(rows, heads, dtype=torch.bool).scatter(1, chance.topk(count, dim=1).indices, True)
        return activation.masked_fill(picked.to(activation.device)[:, None, :, None], 0.0)
