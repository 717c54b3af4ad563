"""`AblateChannels` and `ZeroAttention`: a part of the model hands on nothing; the control takes as large another part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.capture import Shape
from sinkscope.errors import InterventionError
from sinkscope.fields import NUMBERS, Allowed, FromZero, whole
from sinkscope.interventions.activations import LAYERS, ActivationIntervention, drawn, positions
from sinkscope.interventions.base import Layers, within
from sinkscope.interventions.hooks import HookContext
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.settings import REQUIRED, Setting, of_random, register

Channels = Annotated[tuple[int, ...], Allowed(NUMBERS.expected, lambda some: some == () or NUMBERS(some))]


@register(
    "ablate_channels",
    Setting("channels", None, NUMBERS, place=10, quiet=True, sweeps=False, label=lambda some: ",".join(map(str, some))),
    Setting("top", None, whole(1), place=11, quiet=True, label="top {}".format),
    Setting("of", "channels", place=12, quiet=True),
    LAYERS,
    controls=of_random,
)
@dataclass(frozen=True)
class AblateChannels(ActivationIntervention, noop={"channels": (), "top": 0}):
    """These channels of what leaves each of `layers` are 0 at every position.

    top: instead of `channels`, the n largest by root mean square over the positions of a row. They are found in each layer at
    the first forward of a generation and kept. of="random": the control, matched in norm. What the ablation would take from its
    channels is taken from as many random others, the same in all layers: the same change, in another place. The residual
    stream keeps a change, so that in each layer only what was not yet taken is.
    """

    channels: Channels | None = None
    top: FromZero | None = None
    layers: Layers | None = None
    of: Literal["channels", "random"] = "channels"
    seed: FromZero = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.channels is None) == (self.top is None):
            raise InterventionError(f"Expected either channels or top, got {self.channels!r} and {self.top!r}.")

    def act(self, activation: Tensor, context: HookContext, memory: Memory) -> Tensor | None:
        removed = self._removed_below(activation, context, memory)
        natural = activation + removed  # as it would stand here if lower layers had lost nothing
        picked = self._picked(natural, context, memory)[:, None].expand(-1, activation.shape[1], -1)
        if self.of == "channels":
            made = activation.scatter(-1, picked, 0.0)
        else:
            others = self._others(picked[:, 0], activation, context)[:, None].expand_as(picked)
            made = activation.scatter_add(-1, others, removed.gather(-1, others) - natural.gather(-1, picked))
        if within(self.steps, memory.steps.get(context.layer, 1) - 1, context.share):
            memory.own[id(self), "removed"] = context.forward, context.layer, removed + (activation - made)
        return made

    def _removed_below(self, activation: Tensor, context: HookContext, memory: Memory) -> Tensor:
        """What this forward's lower layers have lost, [batch, position, width]: the residual stream does not give it back."""
        forward, layer, removed = memory.own.get((id(self), "removed"), (None, 0, None))
        if removed is None or forward is not context.forward or layer >= context.layer:
            return torch.zeros_like(activation)
        found: Tensor = removed.to(activation)
        return found

    def _others(self, picked: Tensor, activation: Tensor, context: HookContext) -> Tensor:
        """[batch, n]: as many random channels that are not picked, the same in all layers as far as they are free."""
        rows, width, count = len(activation), activation.shape[-1], picked.shape[-1]
        if 2 * count > width:
            raise InterventionError(f"Expected at most half of the {width} channels with of='random', got {count}.")
        chance = drawn(context, self.seed, rows, width).to(activation.device)
        return chance.scatter(-1, picked, -1.0).topk(count, dim=-1).indices

    def _picked(self, activation: Tensor, context: HookContext, memory: Memory) -> Tensor:
        """[batch, n]: the channels of each row."""
        width = activation.shape[-1]
        if self.channels is not None:
            if max(self.channels) >= width:
                raise InterventionError(f"Expected channels from 0 to {width - 1}, got {max(self.channels)}.")
            place = id(self), activation.device  # a copy to a GPU is made once, not in every layer
            if place not in memory.own:
                memory.own[place] = torch.tensor(self.channels, device=activation.device)
            named: Tensor = memory.own[place]
            return named.expand(len(activation), -1)
        if self.top is not None and self.top > width:
            raise InterventionError(f"Expected top to be at most the {width} channels of the model, got {self.top}.")
        known: Tensor | None = memory.own.get((id(self), context.layer))  # of this generation
        if known is None or context.forward is None:
            known = largest(activation, positions("all", activation, context), int(self.top or 0))
            memory.own[id(self), context.layer] = known
        return known


def largest(activation: Tensor, real: Tensor | None, count: int) -> Tensor:
    """[batch, count]: the channels with the largest root mean square over a row's real positions, largest first."""
    squares = activation.float().square()
    if real is not None:
        squares = squares * real[..., None]
    return squares.sum(1).topk(count, dim=-1).indices


def is_pairs(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(NUMBERS(pair) and len(pair) == 2 for pair in value)


Heads = Annotated[tuple[tuple[int, int], ...], Allowed("pairs of layer and head, such as ((3, 0),)", is_pairs)]


@register(
    "zero_attention",
    Setting(
        "heads", REQUIRED, lambda value: bool(value) and is_pairs(value), "a list of [layer, head]", sweeps=False, place=10,
        label=lambda heads: ",".join(f"{layer}.{head}" for layer, head in heads),
    ),
    Setting("of", "heads", place=12, quiet=True),
    controls=of_random,
)  # fmt: skip
@dataclass(frozen=True)
class ZeroAttention(ActivationIntervention, noop={"heads": ()}):
    """What these heads put out is 0 at every position.

    heads: pairs of layer and head, such as ((3, 0), (4, 1)). of="random": as many other heads of the same layers, the control.
    """

    heads: Heads
    of: Literal["heads", "random"] = "heads"
    seed: FromZero = 0

    def check(self, shape: Shape) -> None:
        shape.check([layer for layer, _ in self.heads], [head for _, head in self.heads], InterventionError)

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
