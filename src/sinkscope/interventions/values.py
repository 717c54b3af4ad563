"""The key keeps its attention, but what it carries is taken away: does a sink store anything?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.of import SelectorIntervention
from sinkscope.interventions.random import MaskRandom
from sinkscope.interventions.settings import register
from sinkscope.interventions.sinks import MaskSinks
from sinkscope.interventions.words import ABOVE, BELOW, OF, RANK, ROWS, WHICH, K, of_random

WORDS = (K, RANK, ROWS, OF, ABOVE, BELOW, *WHICH)


@dataclass(frozen=True)
class _ChangedValues(SelectorIntervention):
    @classmethod
    def from_settings(cls, values: dict[str, Any], seed: int) -> Self:
        words = {name: value for name, value in values.items() if name != "of"}
        return cls(MaskRandom(seed=seed, **words) if values.get("of") == "random" else MaskSinks(**words))

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.of.select(call, memory)
        if picked is None:
            return None
        return Change(values=lambda values: self.replaced(values, picked, call.real_keys), touched=picked)

    @abstractmethod
    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        """values [batch, head, key, dim], picked bool [batch, head, key] → values."""

    def to_dict(self) -> dict[str, Any]:
        return {"name": type(self).__name__, **self.settings(), "of": self.of.to_dict()}


@register("zero_values", *WORDS, controls=of_random)
class ZeroValues(_ChangedValues):
    """The picked keys carry nothing: their value is 0."""

    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        return values.masked_fill(picked.unsqueeze(-1), 0.0)


@register("mean_values", *WORDS, controls=of_random)
class MeanValues(_ChangedValues):
    """The picked keys carry the mean value of all real keys of their head."""

    def replaced(self, values: Tensor, picked: Tensor, real: Tensor | None) -> Tensor:
        if real is None:
            mean = values.mean(2, keepdim=True)
        else:
            weights = real[:, None, :, None].to(values.dtype)
            mean = (values * weights).sum(2, keepdim=True) / weights.sum(2, keepdim=True)
        return values.where(~picked.unsqueeze(-1), mean)
