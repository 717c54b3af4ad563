"""What an intervention is: a frozen dataclass that says, call by call, what to change in the attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.errors import InterventionError
from sinkscope.interventions.memory import Map, Memory


class Intervention(ABC):
    """One way to change attention. Settings are fields; what it remembers of a run lives in `Memory`."""

    @property
    @abstractmethod
    def is_noop(self) -> bool:
        """Whether these settings change nothing: then the output is bit-identical to the untouched model's."""

    @abstractmethod
    def change(self, call: Call, memory: Memory) -> Change | None:
        """What to change in this call; None for nothing."""

    def maps(self) -> set[Map]:
        """Which maps of the last forward it wants to be remembered."""
        return set()

    def to_dict(self) -> dict[str, Any]:
        return {"name": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Selector(Intervention):
    """An intervention that picks keys, head by head, and hides them from every query."""

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.select(call, memory)
        return None if picked is None else Change(drop=picked, keep_self=getattr(self, "keep_self", False))

    @abstractmethod
    def select(self, call: Call, memory: Memory) -> Tensor | None:
        """bool [batch, head, key]; None for nothing."""


def top(scores: Tensor, k: int) -> Tensor:
    """The k largest of [..., key] as bool, lowest position first where equal; never a key that scores 0 or less."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True) & (scores > 0)


def limited(picked: Tensor, call: Call, layers: Collection[int] | None, heads: Collection[int] | None) -> Tensor | None:
    """Only the layers and heads that were asked for."""
    if layers is not None and call.layer not in layers:
        return None
    if heads is not None:
        wanted = torch.zeros(picked.shape[1], dtype=torch.bool, device=picked.device)
        wanted[[head for head in heads if head < picked.shape[1]]] = True
        picked = picked & wanted[None, :, None]
    return picked


def at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InterventionError(f"Expected {name} to be a whole number of at least {least}, got {value!r}.")


def one_of(name: str, value: object, choices: Collection[str]) -> None:
    if value not in choices:
        raise InterventionError(f"Expected {name} to be one of {', '.join(choices)}, got {value!r}.")
