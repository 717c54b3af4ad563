"""What an intervention is: a frozen dataclass that says, call by call, what to change in the attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.attention.capture import Shape
from sinkscope.errors import InterventionError
from sinkscope.fields import NUMBERS, Allowed, check_fields, frozen, refuse_huge
from sinkscope.interventions.memory import Map, Memory

End = int | float | None  # None is open
Steps = tuple[End, End]
Layers = Annotated[tuple[int, ...], NUMBERS]


def is_steps(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    if not all(
        end is None or (type(end) is int and end >= 0) or (type(end) is float and 0 <= end <= 1) for end in value
    ):
        return False
    first, last = value
    return type(first) is not type(last) or first is None or bool(first < last)


WINDOW = Allowed("two forwards or shares of the generation, [from, to), either of them null for open", is_steps)


@dataclass(frozen=True)
class Intervention(ABC):
    """One way to change attention.

    Settings are fields; what it remembers of a run lives in `Memory`.
    What a field may hold follows from its type, and is checked here: a choice (`Literal`), a truth, a number, or what
    its annotation says. A subclass with checks of its own begins them with `super().__post_init__()`.
    `class MyIntervention(Intervention, noop={"k": 0})` says under which value of a setting it changes nothing.
    steps: when it acts, (from, to), half-open: whole numbers are forwards (0 is the prefill or the first forward), floats
    shares of the generation, None is open. What is remembered and ranked is so at every step, whether or not it acts there.
    """

    _: KW_ONLY
    steps: Annotated[Steps, WINDOW] | None = None
    _noop: ClassVar[Mapping[str, Any]] = {}

    def __new__(cls, *given: Any, **words: Any) -> Self:
        refuse_huge(cls.__name__, (*given, *words.values()), InterventionError)  # before a subclass reads them
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, frozen(getattr(self, one.name)))
        check_fields(self, InterventionError)

    def __init_subclass__(cls, noop: Mapping[str, Any] | None = None) -> None:
        super().__init_subclass__()
        if noop is not None:
            cls._noop = noop

    @property
    def is_noop(self) -> bool:
        """Whether these settings change nothing: then the output is bit-identical to the untouched model's."""
        return any(getattr(self, name) == value for name, value in self._noop.items())

    @abstractmethod
    def change(self, call: Call, memory: Memory) -> Change | None:
        """What to change in this call; None for nothing."""

    def maps(self) -> set[Map]:
        """Which maps of the last forward it wants to be remembered."""
        return set()

    def prepare(self, model: Any, memory: Memory) -> None:  # noqa: B027 - most need nothing
        """Find out what it needs of the model, into `memory.given`, when the `with` is entered."""

    def check(self, shape: Shape) -> None:
        """Refuse what the model does not have: by its config when the `with` is entered, by what ran when it ends."""
        shape.check(getattr(self, "layers", None), getattr(self, "heads", None), InterventionError)

    def to_dict(self) -> dict[str, Any]:
        """Its name and fields as plain data, selectors and sink rules too; `steps` only where it is given."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        plain = {name: value.to_dict() if hasattr(value, "to_dict") else value for name, value in found.items()}
        return {"name": type(self).__name__, **{name: plain[name] for name in plain if name != "steps" or self.steps}}


@dataclass(frozen=True)
class Selector(Intervention):
    """An intervention that picks keys, head by head, and hides them from every query."""

    def change(self, call: Call, memory: Memory) -> Change | None:
        picked = self.select(call, memory)
        return None if picked is None else Change(drop=picked, keep_self=getattr(self, "keep_self", False))

    @abstractmethod
    def select(self, call: Call, memory: Memory) -> Tensor | None:
        """bool [batch, head, key]; None for nothing."""


def within(steps: Steps | None, forward: int, share: float | None) -> bool:
    """Whether an intervention acts in this forward; forward: how many came before, share: how far the generation is.

    0 is the prefill or the first forward. A share is the decoder's step over the most steps that its settings can take: the
    tokens of a left-to-right generation, the steps of a schedule. With commits by a threshold a generation is over before.
    """
    if steps is None:
        return True
    if share is None and any(isinstance(end, float) for end in steps):
        raise InterventionError(
            "Steps as shares of the generation need a decoder that knows its steps; generate with sk.decode, sk.trace or "
            "model.generate, or give whole numbers of forwards."
        )
    first, last = ((share if isinstance(end, float) else forward) or 0 for end in steps)
    return (steps[0] is None or first >= steps[0]) and (steps[1] is None or last < steps[1])


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
