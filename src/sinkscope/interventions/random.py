"""`MaskRandom`: the random control, count-matched or mass-matched with MaskSinks, but never the sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.interventions.base import at_least, limited, one_of, true_or_false
from sinkscope.interventions.memory import Memory, received_now
from sinkscope.interventions.ranked import Ranked
from sinkscope.interventions.settings import register
from sinkscope.interventions.words import ABOVE, BELOW, KEEP_SELF, MATCH, RANK, ROWS, WHICH, K, ranked_keys

PRIME = 1_000_003


def _short_name(given: Mapping[str, Any], causal: bool) -> str | None:
    """random for content key, same mass; by which ranking the avoided keys are found is not said, their rows are."""
    names = ranked_keys({name: value for name, value in given.items() if name not in ("match", "rank")})
    if names is None:
        return None
    keys, *rows = names.split(", ")
    match = "same mass" if given.get("match") == "mass" else "as many"
    return ", ".join(["random" if keys == "top key" else f"random for {keys}", match, *rows])


@register("mask_random", K, RANK, ROWS, MATCH, KEEP_SELF, ABOVE, BELOW, *WHICH, short=_short_name)
@dataclass(frozen=True)
class MaskRandom(Ranked):
    """Hide random keys with the budget of MaskSinks of the same settings, head by head, from the second forward on.

    The keys are drawn among those that MaskSinks would not take but that compete with them: of the same kinds and value
    norms, where those are given. match: "count" hides as many keys (the count-matched control); "mass" hides keys in random
    order until they draw, at this very forward, what the sinks draw there (the mass-matched control; where all other keys
    draw less, all). A key cannot be hidden by halves: the last one is hidden with the chance that makes the mean right.
    avoid_sinks: never the sinks themselves.
    All rows of a batch share a draw, unless the decoder names a seed per row (`Forward.row_seeds`).
    """

    seed: int = 0
    match: Literal["count", "mass"] = "count"
    avoid_sinks: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("seed", self.seed, 0)
        one_of("match", self.match, ("count", "mass"))
        true_or_false("avoid_sinks", self.avoid_sinks)

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        ranking = self.ranking(call, memory)
        if ranking is None:
            return None
        sinks, may = ranking
        if self.avoid_sinks:
            may = may & ~sinks
        chance = self._chance(call, memory).to(may.device).masked_fill(~may, -1.0)
        order = chance.sort(dim=-1, descending=True, stable=True).indices
        if self.match == "count":
            enough = torch.arange(call.keys, device=may.device).expand_as(order) < sinks.sum(-1, keepdim=True)
        else:
            now = received_now(call)
            mass = now.gather(-1, order)
            target = (now * sinks).sum(-1, keepdim=True)
            before = mass.cumsum(-1) - mass
            enough = before + self._luck(call, memory).to(mass.device) * mass < target
        picked = torch.zeros_like(may).scatter(-1, order, enough) & may
        return limited(picked, call, self.layers, self.heads)

    def _draws(self, call: Call, memory: Memory, shape: tuple[int, int], purpose: int = 0) -> Tensor:
        """Uniform numbers of this step and layer, [batch, *shape]; another purpose draws other numbers."""
        rows = call.q.shape[0]
        seeds = None if call.forward is None else call.forward.row_seeds
        if seeds is None:
            mixed = ((self.seed * PRIME + memory.step(call)) * PRIME + call.layer + purpose) % (2**63 - 1)
            return torch.rand(shape, generator=torch.Generator().manual_seed(mixed)).expand(rows, *shape)
        drawn = []
        for row in range(rows):  # with guidance the second half of a batch is a copy of the first
            mixed = self.seed * PRIME + seeds[row % len(seeds)]
            mixed = ((mixed * PRIME + memory.step(call)) * PRIME + call.layer + purpose) % (2**63 - 1)
            drawn.append(torch.rand(shape, generator=torch.Generator().manual_seed(mixed)))
        return torch.stack(drawn)

    def _luck(self, call: Call, memory: Memory) -> Tensor:
        """A uniform number per head, [batch, head, 1]."""
        return self._draws(call, memory, (call.q.shape[1], 1), purpose=500_009)

    def _chance(self, call: Call, memory: Memory) -> Tensor:
        """Uniform numbers [batch, head, key] of this step and layer, the same for a row alone or in a padded batch."""
        drawn = self._draws(call, memory, (call.keys, call.q.shape[1])).mT
        padding = None if call.forward is None else call.forward.padding
        if padding is None:
            return drawn
        shifted = (torch.arange(call.keys) - padding[:, None]).clamp(min=0)
        return drawn.gather(-1, shifted[:, None, :].expand_as(drawn))
