"""What an intervention on activations is: at its places it says what stands there instead, step by step.

`Steer` adds a direction to the residual stream; the control adds a random one of the same length. `AblateChannels` and
`ZeroAttention` let a part of the model hand on nothing; the control takes as large another part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PlainValidator
from torch import Tensor

from sinkscope.attention.call import Call, Change
from sinkscope.attention.forward import mixed
from sinkscope.attention.patch import Shape
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import Intervention, Label, Layers, Match, within, write_list
from sinkscope.interventions.hooks import HookContext
from sinkscope.interventions.memory import Memory
from sinkscope.validation import FieldError, FromZero, Seed, settings, show_value

At = Literal["all", "masked", "committed", "prompt", "sinks"]
OF = Label(lambda of: "random" if of == "random" else "", 12)


@settings(InterventionError)
class ActivationIntervention(Intervention):
    """Subclasses say where they act, and what they make of an activation there; `steps` says when.

    One with a field `of` has its control in of="random".
    """

    def controls(self) -> Mapping[Match, Sequence[Intervention]]:
        if getattr(self, "of", "random") == "random":
            return {}
        changes: dict[str, Any] = {"of": "random"}
        return {"count": [replace(self, **changes)]}

    @classmethod
    def short_name(cls, words: Mapping[str, Any], causal: bool) -> str | None:
        return None

    def change(self, call: Call, memory: Memory) -> Change | None:
        return None  # attention itself is left alone

    def where(self, shape: Shape) -> list[str]:
        """Return the places at which the intervention acts, as `hook` takes them.

        Args:
            shape: Layers and heads of the model.
        """
        layers = getattr(self, "layers", None)
        return ["resid_post"] if layers is None else [f"layers.{layer}.resid_post" for layer in layers]

    @abstractmethod
    def act(self, activation: Tensor, context: HookContext, memory: Memory) -> Tensor | None:
        """Return the new activation; None leaves it unchanged.

        Args:
            activation: Activation at the place.
            context: State of the generation.
            memory: Memory of this generation.
        """


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


def _read_vector(value: Any) -> Any:
    if isinstance(value, str | Path):
        if not str(value).endswith(".safetensors") or not Path(value).is_file():
            raise ValueError(
                f"must be a safetensors file that exists, or a list of numbers, got {show_value(str(value))}"
            )
        return str(value)
    try:
        made = torch.as_tensor(value, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        made = torch.zeros(0)
    if made.dim() not in (1, 2) or not made.numel() or not bool(torch.isfinite(made).all()):
        raise ValueError(
            f"must be finite numbers, [width] or [layer, width], or a safetensors file, got {show_value(value)}"
        )
    numbers = made.tolist()
    return tuple(map(tuple, numbers)) if made.dim() == 2 else tuple(numbers)


def _write_vector(vector: Any) -> str:
    return Path(vector).stem if isinstance(vector, str) else f"along {len(vector)} numbers"


Vector = Annotated[
    Tensor | Sequence[float] | Sequence[Sequence[float]] | str | Path,
    PlainValidator(_read_vector),
    Label(_write_vector, 10),
]
Strength = Annotated[float, Field(strict=True, ge=-1e6, le=1e6, allow_inf_nan=False), Label("by {:g}", 11)]


@settings(InterventionError)
class Steer(ActivationIntervention, noop={"strength": 0}):
    """Add a multiple of a vector to the residual stream after each of the given layers.

    Args:
        vector: Vector [width], or one per layer of the model [layer, width]: a tensor, numbers, or a safetensors file
            whose only tensor it is.
        layers: Layer indices; None for all.
        strength: Factor of the vector; 0 changes nothing.
        at: Positions: "all", "masked", "committed", "prompt", or "sinks" of the previous step.
        of: "vector", or "random" for a random direction of the same length, as a control.
        seed: Seed of the random direction.
    """

    name: ClassVar[str] = "steer"
    always: ClassVar[tuple[str, ...]] = ("strength",)
    vector: Vector
    layers: Layers | None = None
    strength: Strength = 1.0
    at: Annotated[At, Label("at {}", 55)] = "all"
    of: Annotated[Literal["vector", "random"], OF] = "vector"
    seed: Seed = 0

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


# ---- channels and heads hand on nothing ----

Channels = Annotated[tuple[FromZero, ...], Label(write_list, 10)]


@settings(InterventionError)
class AblateChannels(ActivationIntervention, noop={"channels": (), "top": 0}):
    """Set channels of the residual stream to zero after each of the given layers.

    The residual stream keeps a change, so each layer removes only what is left.

    Args:
        channels: Channel indices; give either `channels` or `top`.
        top: Number of channels with the largest root mean square over the positions of a sequence. They are found in
            each layer at the first forward of a generation and kept.
        layers: Layer indices; None for all.
        of: "channels", or "random" for a norm-matched control: as many random other channels, the same in all layers,
            lose what the ablation would remove.
        seed: Seed of the random channels.
    """

    name: ClassVar[str] = "ablate_channels"
    channels: Channels | None = None
    top: Annotated[FromZero, Label("top {}", 11)] | None = None
    layers: Layers | None = None
    of: Annotated[Literal["channels", "random"], OF] = "channels"
    seed: Seed = 0

    def __post_init__(self) -> None:
        if (self.channels is None) == (self.top is None):
            raise FieldError(f"or top must be given, one of them, got {self.channels!r} and {self.top!r}", "channels")

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


Heads = Annotated[tuple[tuple[FromZero, FromZero], ...], Label(write_list, 10)]


@settings(InterventionError)
class ZeroAttention(ActivationIntervention, noop={"heads": ()}):
    """Set the output of heads to zero at every position.

    Args:
        heads: Pairs of layer and head, such as ((3, 0), (4, 1)).
        of: "heads", or "random" for as many other heads of the same layers, as a control.
        seed: Seed of the random heads.
    """

    name: ClassVar[str] = "zero_attention"
    heads: Heads
    of: Annotated[Literal["heads", "random"], OF] = "heads"
    seed: Seed = 0

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
