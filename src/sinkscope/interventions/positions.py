"""Keys hidden by where they stand: given positions, a cut in the context, everything outside a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import PlainValidator
from torch import Tensor

from sinkscope.attention.call import Call, Change, untouched_sums
from sinkscope.attention.patch import Shape
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import Heads, Intervention, Label, Layers, Selector, restrict, write_list
from sinkscope.interventions.memory import Memory
from sinkscope.validation import LARGEST, FieldError, FromZero, Truth, Whole, settings, show_value

Positions = Annotated[tuple[Whole, ...], Label(write_list, 49)]


def own_positions(call: Call) -> Tensor:
    """[batch | 1, key]: the position of every key counted from its row's first real token; −1 in the padding."""
    real = None if call.forward is None else call.real_keys
    if real is None:
        return torch.arange(call.keys, device=call.q.device)[None]
    return (real.cumsum(1) - 1).masked_fill(~real, -1)


@settings(InterventionError)
class MaskPositions(Selector, noop={"positions": ()}):
    """Mask the keys at given positions for every query.

    With `since="first"`, query 0 of a causal model has no key left if position 0 is masked; its attention output is 0.

    Args:
        positions: Positions, counted from each sequence's first token; negative ones count from the end.
        keep_self: Whether a masked key may still attend to itself.
        layers: Layer indices; None for all.
        heads: Head indices, or pairs of layer and head; None for all.
        since: Forward from which keys are masked: "first", or "second", in which a causal model reads its prompt
            unchanged; "second" equals `steps=(1, None)`.
    """

    name: ClassVar[str] = "mask_positions"
    always: ClassVar[tuple[str, ...]] = ("since",)
    positions: Positions
    keep_self: Annotated[Truth, Label("keep self", 100)] = False
    layers: Layers | None = None
    heads: Heads | None = None
    since: Annotated[
        Literal["first", "second"], Label(lambda since: "since the second forward" if since == "second" else "")
    ] = "first"

    def __post_init__(self) -> None:
        if self.since == "second" and self.steps is not None:
            raise FieldError("'second' cannot go with steps; it is steps=(1, None)", "since")

    @classmethod
    def short_name(cls, words: Mapping[str, Any], causal: bool) -> str | None:
        if set(words) - {"positions", "since"}:
            return None
        places, second = words["positions"], words.get("since") == "second"
        if second:
            when = "after the prefill" if causal else "from the second forward"
        else:
            when = "from the first row" if causal else "from the first forward"
        return f"position{'s' if len(places) > 1 else ''} {', '.join(map(str, places))} {when}"

    def check(self, shape: Shape) -> None:
        super().check(shape)
        keys = shape.keys
        # Prompts differ in length: some may be beyond.
        if keys is not None and self.positions and not any(-keys <= one < keys for one in self.positions):
            raise InterventionError(
                f"Expected positions among the {keys} keys that {shape.name} had at most, got {self.positions}; choose others."
            )

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        if self.since == "second" and memory.step(call) == 0:
            return None
        picked = call.once(("positions", self.positions), lambda: self._picked(call))
        return restrict(picked[:, None].expand(call.q.shape[0], call.q.shape[1], -1), call, self.layers, self.heads)

    def _picked(self, call: Call) -> Tensor:
        """bool [batch | 1, key]."""
        own = own_positions(call)
        asked = torch.tensor(self.positions, dtype=torch.int64, device=own.device)
        from_the_end = own - own.amax(1, keepdim=True) - 1  # below 0, as the positions that count from there
        return (torch.isin(own, asked) | torch.isin(from_the_end, asked)) & (own >= 0)


def _read_end(value: Any) -> int | float:
    if type(value) in (int, float) and 0 <= value < LARGEST:
        end: int | float = value
        return end
    raise ValueError(f"must be a position, or a share of the prompt from 0 to 1, got {show_value(value)}")


@settings(InterventionError)
class MaskBuiltIn(Intervention):
    """Mask the learned key that a model has in front of all positions in each head (GIDD v2).

    Args:
        layers: Layer indices; None for all.
    """

    name: ClassVar[str] = "mask_built_in"
    layers: Layers | None = None

    def change(self, call: Call, memory: Memory) -> Change | None:
        if call.built_in is None:
            raise InterventionError("Expected a model with a built-in key, such as GIDD v2; this one has none to mask.")
        if self.layers is not None and call.layer not in self.layers:
            return None
        return Change(hide_built_in=True, removed=untouched_sums(call).sum(2)[..., :1])


@settings(InterventionError)
class CutContext(Selector):
    """Mask a stretch of the context for every query.

    Args:
        start: First position, or fraction of the prompt (0.0 to 1.0). If one end is a fraction, 0 and 1 are fractions
            too.
        stop: Position after the last one, or fraction of the prompt.
        keep_self: Whether a masked key may still attend to itself.
        layers: Layer indices; None for all.
        heads: Head indices, or pairs of layer and head; None for all.
    """

    name: ClassVar[str] = "cut"
    start: Annotated[int | float, PlainValidator(_read_end), Label("", 1)]
    stop: Annotated[int | float, PlainValidator(_read_end), Label("", 2)]
    keep_self: Annotated[Truth, Label("keep self", 100)] = False
    layers: Layers | None = None
    heads: Heads | None = None

    def __post_init__(self) -> None:
        if isinstance(self.start, float) or isinstance(self.stop, float):
            for end in ("start", "stop"):
                object.__setattr__(self, end, float(getattr(self, end)))
            if self.stop > 1:
                raise FieldError(
                    f"must be a share of the prompt from 0 to 1 beside another share, got {self.stop:g}", "stop"
                )
        if self.stop < self.start:
            raise FieldError(f"must not be smaller than start, {self.start}, got {self.stop}", "stop")

    def label(self) -> str:
        """Return the settings in a few words."""
        return f"{self.start:g}–{self.stop:g} {super().label()}".strip()

    @property
    def is_noop(self) -> bool:
        return self.start == self.stop

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        picked = call.once(("cut", self.start, self.stop), lambda: self._picked(call))
        return restrict(picked[:, None].expand(call.q.shape[0], call.q.shape[1], -1), call, self.layers, self.heads)

    def _picked(self, call: Call) -> Tensor:
        """bool [batch | 1, key]."""
        own = own_positions(call)
        start: Tensor | int | float = self.start
        stop: Tensor | int | float = self.stop
        if isinstance(self.stop, float):
            if call.forward is None:
                raise InterventionError(
                    "A cut in shares of the prompt needs a decoder that knows the prompt; give positions."
                )
            # A forward over a cache may have fewer keys than the prompt.
            real = call.forward.real_keys(call.forward.prompt, own.device)
            # One, or [batch, 1].
            prompt = torch.tensor(call.forward.prompt) if real is None else real.sum(1, keepdim=True)
            start, stop = (prompt * self.start).floor(), (prompt * self.stop).floor()
        return (own >= start) & (own < stop)


@settings(InterventionError)
class Window(Intervention, noop={"radius": None}):
    """Limit attention to a band around the diagonal.

    Args:
        radius: Largest distance, in positions, between a query and the keys that it attends to; None for no limit.
        layers: Layer indices; None for all.
    """

    name: ClassVar[str] = "window"
    radius: Annotated[FromZero, Label("radius {}")] | None
    layers: Layers | None = None

    def change(self, call: Call, memory: Memory) -> Change | None:
        if self.radius is None or (self.layers is not None and call.layer not in self.layers):
            return None
        return Change(hide=call.once(("window", self.radius), lambda: self._hidden(call)))

    def _hidden(self, call: Call) -> Tensor:
        """bool [1, 1, query, key]."""
        queries = torch.arange(call.start, call.start + call.queries, device=call.q.device)
        keys = torch.arange(call.keys, device=call.q.device)
        return ((queries[:, None] - keys[None]).abs() > (self.radius or 0))[None, None]
