"""Keys hidden by where they stand: given positions, a cut in the context, everything outside a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, Change
from sinkscope.attention.capture import Shape
from sinkscope.errors import InterventionError
from sinkscope.fields import Allowed, FromZero, number, whole
from sinkscope.interventions.base import Intervention, Layers, Selector, limited
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.settings import REQUIRED, Setting, register


def own_positions(call: Call) -> Tensor:
    """[batch | 1, key]: the position of every key counted from its row's first real token; −1 in the padding."""
    real = None if call.forward is None else call.real_keys
    if real is None:
        return torch.arange(call.keys, device=call.q.device)[None]
    return (real.cumsum(1) - 1).masked_fill(~real, -1)


POSITION_LIST = Allowed(
    "a list of whole numbers", lambda value: isinstance(value, list | tuple) and all(map(whole(-(10**9)), value))
)
POSITIONS = Setting(
    "positions", REQUIRED, Allowed(POSITION_LIST.expected, lambda value: bool(value) and POSITION_LIST(value)), sweeps=False,
    label=lambda positions: ",".join(map(str, positions)),
)  # fmt: skip


def _short_name(given: Mapping[str, Any], causal: bool) -> str | None:
    places = given["positions"]
    since = (
        ("from the first row", "after the prefill") if causal else ("from the first forward", "from the second forward")
    )
    where = f"position{'s' if len(places) > 1 else ''} {', '.join(map(str, places))}"
    return None if set(given) - {"positions", "since"} else f"{where} {since[given.get('since') == 'second']}"


@register(
    "mask_positions",
    POSITIONS,
    Setting("since", "first", label=lambda since: "since the second forward" if since == "second" else ""),
    short=_short_name,
)
@dataclass(frozen=True)
class MaskPositions(Selector, noop={"positions": ()}):
    """Hide the keys at these positions from every query; negative ones count from the end.

    since: from the "first" forward on, or from the "second", as sinks are: then a causal model reads its prompt undisturbed;
    "second" is the same as steps=(1, None).
    From the first on, row 0 of a causal model, whose only key is key 0, attends to nothing. It gets an output of 0 from the
    attention of that layer.
    """

    positions: Annotated[tuple[int, ...], POSITION_LIST]
    keep_self: bool = False
    layers: Layers | None = None
    heads: Layers | None = None
    since: Literal["first", "second"] = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.since == "second" and self.steps is not None:
            raise InterventionError(
                f"Expected since='second' or steps={self.steps}, got both; since is steps=(1, None)."
            )

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
        return limited(picked[:, None].expand(call.q.shape[0], call.q.shape[1], -1), call, self.layers, self.heads)

    def _picked(self, call: Call) -> Tensor:
        """bool [batch | 1, key]."""
        own = own_positions(call)
        asked = torch.tensor(self.positions, dtype=torch.int64, device=own.device)
        from_the_end = own - own.amax(1, keepdim=True) - 1  # below 0, as the positions that count from there
        return (torch.isin(own, asked) | torch.isin(from_the_end, asked)) & (own >= 0)


SHARE = "a share of the prompt from 0 to 1"


@register(
    "cut",
    Setting("start", REQUIRED, number(0, 1), SHARE, build=float),
    Setting("stop", REQUIRED, number(0, 1), SHARE, build=float),
)
@dataclass(frozen=True)
class CutContext(Selector):
    """Hide a stretch of the context from every query: [start, stop) in positions, or in shares of the prompt (0.0 … 1.0)."""

    start: Annotated[int | float, number(0)]
    stop: Annotated[int | float, number(0)]
    keep_self: bool = False
    layers: Layers | None = None
    heads: Layers | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.start) is not type(self.stop) or (isinstance(self.stop, float) and self.stop > 1):
            raise InterventionError(
                f"Expected two positions or two shares of the prompt, got {self.start} and {self.stop}."
            )
        if self.stop < self.start:
            raise InterventionError(f"Expected 0 ≤ start ≤ stop, got {self.start} and {self.stop}.")

    @staticmethod
    def label(values: dict[str, Any]) -> str:
        return f"{values['start']:g}–{values['stop']:g}"

    @property
    def is_noop(self) -> bool:
        return self.start == self.stop

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        picked = call.once(("cut", self.start, self.stop), lambda: self._picked(call))
        return limited(picked[:, None].expand(call.q.shape[0], call.q.shape[1], -1), call, self.layers, self.heads)

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


@register("window", Setting("radius", REQUIRED, whole(0), label="radius {}".format))
@dataclass(frozen=True)
class Window(Intervention, noop={"radius": None}):
    """Attention limited to a band: a query sees keys at most `radius` positions away; None: no limit."""

    radius: FromZero | None
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
