"""`MaskRandom`: the random control, count-matched or mass-matched with MaskSinks, but never the sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.calls import Call
from sinkscope.interventions.base import at_least, limited, one_of, true_or_false
from sinkscope.interventions.memory import Memory, received_now
from sinkscope.interventions.ranked import Ranked
from sinkscope.interventions.settings import register
from sinkscope.interventions.words import (
    ABOVE,
    ALIGNED,
    AVOID,
    BELOW,
    KEEP_SELF,
    MATCH,
    PERSIST,
    RANK,
    ROWS,
    WHICH,
    K,
    ranked_keys,
)  # fmt: skip

PRIME = 1_000_003


def _short_name(given: Mapping[str, Any], causal: bool) -> str | None:
    """random for content key, same mass; by which ranking the avoided keys are found is not said, their rows are."""
    names = ranked_keys({name: value for name, value in given.items() if name not in ("match", "rank")})
    if names is None:
        return None
    keys, *rows = names.split(", ")
    match = "same mass" if given.get("match") == "mass" else "as many"
    return ", ".join(["random" if keys == "top key" else f"random for {keys}", match, *rows])


@register(
    "mask_random", K, RANK, ROWS, MATCH, KEEP_SELF, ABOVE, BELOW, *WHICH, PERSIST, ALIGNED, AVOID, short=_short_name
)
@dataclass(frozen=True)
class MaskRandom(Ranked):
    """Hide random keys with the budget of MaskSinks of the same settings, head by head, from the second forward on.

    The keys are drawn among those that MaskSinks would not take but that compete with them: of the same kinds and value
    norms, where those are given. match: "count" hides as many keys (the count-matched control); "mass" hides keys in random
    order until they draw, at this very forward, what the sinks draw there (the mass-matched control; where all other keys
    draw less, all). A key cannot be hidden by halves: the last one is hidden with the chance that makes the mean right.
    avoid_sinks: never the sinks themselves: the top `avoid` keys, as many as k unless given.
    persist: one draw per generation: keys are taken in the same random order at every step, avoiding the sinks of the first
    ranking, so that count-matched keys stay the same. aligned: one draw for all heads of all layers. Each head avoids its own
    sinks; with per="model" all avoid the same ones, and hide the same keys: as a sink does that is one token for all heads.
    All rows of a batch share a draw, unless the decoder names a seed per row (`Forward.row_seeds`).
    """

    seed: int = 0
    match: Literal["count", "mass"] = "count"
    avoid_sinks: bool = True
    persist: bool = False
    aligned: bool = False
    avoid: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("seed", self.seed, 0)
        one_of("match", self.match, ("count", "mass"))
        for name in ("avoid_sinks", "persist", "aligned"):
            true_or_false(name, getattr(self, name))
        if self.avoid is not None:
            at_least("avoid", self.avoid, 0)

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        ranking = self.ranking(call, memory)
        if ranking is None:
            return None
        sinks, may = ranking
        if self.avoid_sinks:
            may = may & ~self._avoided(sinks, call, memory)
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

    def _avoided(self, sinks: Tensor, call: Call, memory: Memory) -> Tensor:
        """bool [batch, head, key]: the sinks of this step, or of the first one that was ranked."""
        if self.avoid is not None:
            ranking = replace(self, k=self.avoid).ranking(call, memory)
            sinks = sinks if ranking is None else ranking.sinks
        if not self.persist:
            return sinks
        first: Tensor = memory.own.setdefault((id(self), call.layer), sinks)
        return torch.nn.functional.pad(first, (0, call.keys - first.shape[-1]))

    def _draws(self, call: Call, memory: Memory, shape: tuple[int, int], purpose: int = 0) -> Tensor:
        """Uniform numbers of this step and layer, [batch, *shape]; another purpose draws other numbers."""
        rows = call.q.shape[0]
        step, layer = 0 if self.persist else memory.step(call), 0 if self.aligned else call.layer
        seeds = None if call.forward is None else call.forward.row_seeds
        if seeds is None:
            mixed = ((self.seed * PRIME + step) * PRIME + layer + purpose) % (2**63 - 1)
            return torch.rand(shape, generator=torch.Generator().manual_seed(mixed)).expand(rows, *shape)
        drawn = []
        for row in range(rows):  # with guidance the second half of a batch is a copy of the first
            mixed = self.seed * PRIME + seeds[row % len(seeds)]
            mixed = ((mixed * PRIME + step) * PRIME + layer + purpose) % (2**63 - 1)
            drawn.append(torch.rand(shape, generator=torch.Generator().manual_seed(mixed)))
        return torch.stack(drawn)

    def _luck(self, call: Call, memory: Memory) -> Tensor:
        """A uniform number per head, [batch, head, 1], or one for all, [batch, 1, 1]."""
        return self._draws(call, memory, (self._heads(call), 1), purpose=500_009)

    def _heads(self, call: Call) -> int:
        return 1 if self.aligned else call.q.shape[1]

    def _chance(self, call: Call, memory: Memory) -> Tensor:
        """Uniform numbers [batch, head, key] of this step and layer, the same for a row alone or in a padded batch."""
        drawn = self._draws(call, memory, (call.keys, self._heads(call))).mT.expand(-1, call.q.shape[1], -1)
        padding = None if call.forward is None else call.forward.padding
        if padding is None:
            return drawn
        shifted = (torch.arange(call.keys) - padding[:, None]).clamp(min=0)
        return drawn.gather(-1, shifted[:, None, :].expand_as(drawn))
