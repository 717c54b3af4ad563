"""Interventions on the keys that another one would hide: what they carry is taken away, or other keys are hidden instead.

A key whose value is taken away keeps its attention: does a sink store anything?
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.attention.listeners import Caught
from sinkscope.attention.selection import Shape
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import Intervention, Selector
from sinkscope.interventions.memory import Map, Memory
from sinkscope.interventions.positions import POSITIONS, MaskPositions
from sinkscope.interventions.random import MaskRandom
from sinkscope.interventions.ranked import MaskSinks
from sinkscope.interventions.settings import register
from sinkscope.interventions.words import ABOVE, BELOW, OF, RANK, ROWS, WHICH, K, of_random


@dataclass(frozen=True)
class SelectorIntervention(Intervention):
    """of: MaskSinks, MaskRandom, MaskPositions or CutContext: whose keys, not whether they are hidden."""

    of: Selector

    def __post_init__(self) -> None:
        if not isinstance(self.of, Selector):
            raise InterventionError(
                f"Expected of=MaskSinks(…) or another intervention that picks keys, got {self.of!r}."
            )
        if self.of.steps is not None:
            raise InterventionError(
                f"Expected steps={self.of.steps} on {type(self).__name__}, where it has an effect, got it on its selector."
            )

    @property
    def is_noop(self) -> bool:
        return self.of.is_noop

    @property
    def needs_kinds(self) -> bool:
        return self.of.needs_kinds

    def check(self, shape: Shape) -> None:
        self.of.check(shape)

    def check_seen(self, caught: Caught, name: str) -> None:
        self.of.check_seen(caught, name)

    def maps(self) -> set[Map]:
        return self.of.maps()

    def to_dict(self) -> dict[str, Any]:
        return {"name": type(self).__name__, **self.settings(), "of": self.of.to_dict()}


def selector(values: dict[str, Any], seed: int) -> Selector:
    """The keys that settings of a study file name: sinks, or with `of: random` as many random ones."""
    words = {name: value for name, value in values.items() if name != "of"}
    return MaskRandom(seed=seed, **words) if values.get("of") == "random" else MaskSinks(**words)


@dataclass(frozen=True)
class _ChangedValues(SelectorIntervention):
    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        return cls(selector(values, seed))

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        if picked is None:
            return None
        return Change(values=lambda values: self.replaced(values, picked, call.real_keys), touched=picked)

    @abstractmethod
    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        """values [batch, head, key, dim], picked bool [batch, head, key] → values."""


@register("zero_values", K, RANK, ROWS, OF, ABOVE, BELOW, *WHICH, controls=of_random)
class ZeroValues(_ChangedValues):
    """The picked keys carry nothing: their value is 0."""

    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        return values.masked_fill(picked.unsqueeze(-1), 0.0)


@register("mean_values", K, RANK, ROWS, OF, ABOVE, BELOW, *WHICH, controls=of_random)
class MeanValues(_ChangedValues):
    """The picked keys carry the mean value of all real keys of their head."""

    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        if real is None:
            mean = values.mean(2, keepdim=True)
        else:
            weights = real[:, None, :, None].to(values.dtype)
            mean = (values * weights).sum(2, keepdim=True) / weights.sum(2, keepdim=True)
        return values.where(~picked.unsqueeze(-1), mean)


@register("mask_instead", K, POSITIONS, RANK, ROWS, ABOVE, BELOW, *WHICH)
@dataclass(frozen=True)
class MaskInstead(SelectorIntervention, Selector):
    """Hide the keys at `positions` in the heads and forwards in which `of` picks a key, and not the key that it picks.

    A sink is one token, the same at every step and in many heads; so is this control: another token of the chat template,
    say, in the same heads. A head whose sink stands at one of the positions is left as it is there.
    """

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "positions", (masked := MaskPositions(self.positions)).positions)
        if masked.is_noop:
            raise InterventionError("Expected at least one position to hide instead, got none.")

    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        words = {name: value for name, value in values.items() if name != "positions"}
        return cls(MaskSinks(**words), values["positions"])

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        picked = self.of.select(call, memory)
        there = MaskPositions(self.positions).select(call, memory)
        if picked is None or there is None:
            return None
        return there & picked.any(-1, keepdim=True) & ~picked
