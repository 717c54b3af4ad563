"""`MaskSinks`: the keys that drew most attention at the last forward are hidden at this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.interventions.base import Selector, at_least, limited, one_of, top
from sinkscope.interventions.memory import Map, Memory, Rank, Rows


class Marks(Protocol):
    """A sink rule, as far as masking needs one (sinkscope.sinks.rules has them)."""

    def marks(self, received: Tensor, queries: Tensor | float, alive: Tensor | None = None) -> Tensor: ...
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class MaskSinks(Selector):
    """Hide the top-k sinks of the last forward, a layer and a head at a time (the paper's Table 1).

    rank: "as_run" ranks the map that was really used (a masked key scores 0 there and is free again at the next step);
    "clean" ranks the map that the same queries and keys would have given without masking.
    rows: "all" queries vote, or only the "last" one (the paper's choice for autoregressive models).
    keep_self: a hidden key may still attend to itself. above: a rule; only keys that it marks are hidden.
    """

    k: int
    rank: Rank = "clean"
    rows: Rows = "all"
    keep_self: bool = False
    above: Marks | None = None
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        at_least("k", self.k, 0)
        one_of("rank", self.rank, ("clean", "as_run"))
        one_of("rows", self.rows, ("all", "last"))

    @property
    def is_noop(self) -> bool:
        return self.k == 0

    def maps(self) -> set[Map]:
        return {(self.rank, self.rows)}

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        scores = memory.scores(call, self.rank, self.rows)
        if scores is None:
            return None
        picked = top(scores, self.k)
        if self.above is not None:
            queries = memory.queries(call)[:, None] if self.rows == "all" else 1
            picked &= self.above.marks(scores, queries, scores > 0)
        return limited(picked, call, self.layers, self.heads)
