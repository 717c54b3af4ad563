"""`MaskRandom`: the control. As many keys as MaskSinks hides, or as much attention, but not the sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.interventions.base import Selector, at_least, limited, one_of, top
from sinkscope.interventions.memory import Map, Memory, Rank, Rows, received_now


@dataclass(frozen=True)
class MaskRandom(Selector):
    """Hide random keys with the budget of MaskSinks(k, rank, rows), head by head, from the second forward on.

    match: "count" hides k keys; "mass" hides keys in random order until they draw, at this very forward, what the k sinks
    draw there (where all other keys draw less, all). A key cannot be hidden by halves: the last one is hidden with the chance
    that makes the mean right. avoid_sinks: never the k sinks themselves.
    """

    k: int
    seed: int = 0
    match: Literal["count", "mass"] = "count"
    avoid_sinks: bool = True
    rank: Rank = "clean"
    rows: Rows = "all"
    keep_self: bool = False
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        at_least("k", self.k, 0)
        at_least("seed", self.seed, 0)
        one_of("match", self.match, ("count", "mass"))
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
        sinks = top(scores, self.k)
        chance = self._chance(call, memory).to(scores.device)
        may = scores > 0  # padding and keys that are not there yet score 0
        if self.avoid_sinks:
            may = may & ~sinks
        chance = chance.masked_fill(~may, -1.0)
        order = chance.sort(dim=-1, descending=True, stable=True).indices
        if self.match == "count":
            enough = torch.arange(call.keys, device=scores.device).expand_as(order) < self.k
        else:
            now = received_now(call)
            mass = now.gather(-1, order)
            target = (now * sinks).sum(-1, keepdim=True)
            before = mass.cumsum(-1) - mass
            enough = before + self._luck(call, memory).to(mass.device) * mass < target
        picked = torch.zeros_like(may).scatter(-1, order, enough) & may
        return limited(picked, call, self.layers, self.heads)

    def _generator(self, call: Call, memory: Memory, purpose: int = 0) -> torch.Generator:
        """Of this step and layer; another purpose draws other numbers."""
        mixed = ((self.seed * 1_000_003 + memory.step(call)) * 1_000_003 + call.layer + purpose) % (2**63 - 1)
        return torch.Generator().manual_seed(mixed)

    def _luck(self, call: Call, memory: Memory) -> Tensor:
        """A uniform number a head, [head, 1]."""
        return torch.rand(call.q.shape[1], 1, generator=self._generator(call, memory, purpose=500_009))

    def _chance(self, call: Call, memory: Memory) -> Tensor:
        """Uniform numbers [batch, head, key] of this step and layer, the same for a row alone or in a padded batch."""
        drawn = torch.rand(call.keys, call.q.shape[1], generator=self._generator(call, memory)).T
        drawn = drawn.expand(call.q.shape[0], -1, -1)
        padding = None if call.forward is None else call.forward.padding
        if padding is None:
            return drawn
        shifted = (torch.arange(call.keys) - padding[:, None]).clamp(min=0)
        return drawn.gather(-1, shifted[:, None, :].expand_as(drawn))
