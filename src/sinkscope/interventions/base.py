"""What an intervention is: a frozen dataclass that says, call by call, what to change in the attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.attention.listeners import Caught
from sinkscope.attention.selection import Shape, check, check_seen, numbers
from sinkscope.errors import InterventionError
from sinkscope.fields import TRUTH, among, need, refuse_huge, whole
from sinkscope.interventions.memory import Map, Memory
from sinkscope.interventions.steps import StepsField


@dataclass(frozen=True)
class Intervention(ABC):
    """One way to change attention. Settings are fields; what it remembers of a run lives in `Memory`.

    steps: when it acts, (from, to), half-open: whole numbers are forwards (0 is the prefill or the first forward), floats
    shares of the generation, None is open. What is remembered and ranked is so at every step, whether or not it acts there.
    """

    _: KW_ONLY
    steps: StepsField = StepsField()  # noqa: RUF009 - a descriptor, which is what checks it

    def __new__(cls, *given: Any, **words: Any) -> Self:
        refuse_huge(cls.__name__, (*given, *words.values()), InterventionError)  # before a subclass reads them
        return super().__new__(cls)

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

    @property
    def needs_kinds(self) -> bool:
        """Whether it must know what kind of token stands at each key."""
        return False

    def prepare(self, model: Any, memory: Memory) -> None:  # noqa: B027 - most need nothing
        """Find out what it needs of the model, into `memory.given`, when the `with` is entered."""

    def check(self, shape: Shape) -> None:
        """Refuse what the model does not have, when the `with` is entered. `layers` and `heads` are checked here."""
        check("layers", getattr(self, "layers", None), shape.layers, shape.name, InterventionError)
        check("heads", getattr(self, "heads", None), shape.heads, shape.name, InterventionError)

    def check_seen(self, caught: Caught, name: str) -> None:
        """Refuse, when the `with` ends, what was chosen and never ran."""
        check_seen(caught, getattr(self, "layers", None), getattr(self, "heads", None), name, InterventionError)

    def to_dict(self) -> dict[str, Any]:
        return {"name": type(self).__name__, **self.settings()}

    def settings(self) -> dict[str, Any]:
        """Its fields as plain data; `steps` only where it is given."""
        return {name: value for name, value in asdict(self).items() if name != "steps" or value is not None}


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
        count, asked = picked.shape[1], tuple(heads)
        wanted = call.once(
            ("heads", asked, count),
            lambda: torch.tensor([head in asked for head in range(count)], device=picked.device),
        )
        picked = picked & wanted[None, :, None]
    return picked


def chosen(intervention: Intervention, *names: str) -> None:
    """Layers and heads of a frozen dataclass: checked, and made tuples."""
    for name in names or ("layers", "heads"):
        object.__setattr__(intervention, name, numbers(name, getattr(intervention, name), InterventionError))


def at_least(name: str, value: object, least: int) -> None:
    need(name, value, whole(least), InterventionError)


def one_of(name: str, value: object, choices: Collection[str]) -> None:
    need(name, value, among(choices), InterventionError)


def true_or_false(name: str, value: object) -> None:
    need(name, value, TRUTH, InterventionError)
