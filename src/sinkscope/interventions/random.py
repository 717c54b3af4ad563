"""`MaskRandom`: the random control, count-matched or mass-matched with MaskSinks, but never the sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope.attention.calls import Call, untouched_columns
from sinkscope.attention.counter import GOLDEN, PRIME, key_of, mix, mixed, uniform64
from sinkscope.fields import FromZero
from sinkscope.interventions.base import limited
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.ranked import Ranked
from sinkscope.interventions.settings import DRAWN, KEEP_SELF, MATCH, RANK, ROWS, WHICH, K, ranked_keys, register


def _short_name(given: Mapping[str, Any], causal: bool) -> str | None:
    """random for content key, ≤ its mass; by which ranking the avoided keys are found is not said, their rows are."""
    names = ranked_keys({name: value for name, value in given.items() if name not in ("match", "rank")})
    if names is None:
        return None
    keys, *rows = names.split(", ")
    match = "≤ its mass" if given.get("match") == "mass" else "as many"
    return ", ".join(["random" if keys == "top key" else f"random for {keys}", match, *rows])


@register("mask_random", K, RANK, ROWS, MATCH, KEEP_SELF, *WHICH, *DRAWN, short=_short_name)
@dataclass(frozen=True)
class MaskRandom(Ranked):
    """Hide random keys with the budget of MaskSinks of the same settings, head by head, from the second forward on.

    The keys are drawn among those that MaskSinks would not take but that compete with them: of the same kinds and value
    norms, where those are given. match: "count" hides as many keys (the count-matched control); "mass" hides keys in random
    order until they draw, at this very forward, what the sinks draw there (the mass-matched control: where all other keys
    draw less, all). A key cannot be hidden by halves: the last one is hidden with the chance that makes the mean right.
    avoid_sinks: never the sinks themselves: the top `avoid` keys, as many as k unless given.
    persist: one draw per generation. Keys are taken in the same random order at every step, avoiding the sinks of the first
    ranking, so that count-matched keys stay the same. aligned: one draw for all heads of all layers. Each head avoids its own
    sinks; with per="model" all avoid the same ones, and hide the same keys: as a sink does that is one token for all heads.
    noise: "reference" draws by torch's CPU generator, "counter" on the device; both give the same keys on every device.
    All rows of a batch share a draw, unless the decoder names a seed per row (`Forward.row_seeds`).
    """

    seed: FromZero = 0
    match: Literal["count", "mass"] = "count"
    avoid_sinks: bool = True
    persist: bool = False
    aligned: bool = False
    avoid: FromZero | None = None
    noise: Literal["reference", "counter"] = "reference"

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        found = self.ranking(call, memory)
        if found is None:
            return None
        place = found.place(call)
        if self.match == "mass" or self.persist or self.avoid is not None:  # layers need something of their own
            alone = slice(place, place + 1)
            picked = self._picked(call, memory, (call.layer,), found.sinks[alone], found.eligible[alone])[0]
        else:
            known, several = memory.own.get(("random", self), (None, None))
            if known is not found or several is None:
                several = self._picked(call, memory, found.layers, found.sinks, found.eligible)
                memory.own["random", self] = found, several
            picked = several[place]
        return limited(picked, call, self.layers, self.heads)

    def _picked(self, call: Call, memory: Memory, layers: tuple[int, ...], sinks: Tensor, may: Tensor) -> Tensor:
        """bool [layer, batch, head, key]."""
        if self.avoid_sinks:
            may = may & ~(
                self._avoided(sinks[0], call, memory)[None] if self.persist or self.avoid is not None else sinks
            )
        chance = self._chance(call, memory, layers).masked_fill(~may, -1.0)
        order = chance.sort(dim=-1, descending=True, stable=True).indices
        if self.match == "count":
            enough = torch.arange(call.keys, device=may.device).expand_as(order) < sinks.sum(-1, keepdim=True)
        else:
            now = untouched_columns(call).sum(2)[None]
            mass = now.gather(-1, order)
            target = (now * sinks).sum(-1, keepdim=True)
            # CUDA adds up in no fixed order: in float64 that decides nothing.
            before = (mass.double() if mass.is_cuda else mass).cumsum(-1) - mass
            heads = 1 if self.aligned else call.q.shape[1]
            luck = self._draws(call, memory, layers, (heads, 1), purpose=500_009)
            enough = before + luck * mass < target
        return torch.zeros_like(may).scatter(-1, order, enough) & may

    def _avoided(self, sinks: Tensor, call: Call, memory: Memory) -> Tensor:
        """bool [batch, head, key]: the sinks of this step, or of the first one that was ranked."""
        if self.avoid is not None:
            ranking = replace(self, k=self.avoid).ranking(call, memory)
            sinks = sinks if ranking is None else ranking.sinks[ranking.place(call)]
        if not self.persist:
            return sinks
        first: Tensor = memory.own.setdefault((id(self), call.layer), sinks)
        return torch.nn.functional.pad(first, (0, call.keys - first.shape[-1]))

    def _draws(
        self, call: Call, memory: Memory, layers: tuple[int, ...], shape: tuple[int, int], purpose: int = 0
    ) -> Tensor:
        """Uniform numbers of this step, [layer, batch | 1, *shape] on the device of the call; another purpose, others."""
        own = None if call.forward is None else call.forward.row_seeds
        # With guidance the second half of a batch is a copy of the first.
        rows = [self.seed] if own is None else [self.seed * PRIME + own[i % len(own)] for i in range(len(call.q))]
        step, device = 0 if self.persist else memory.step(call), call.q.device
        layers = tuple(0 for _ in layers) if self.aligned else layers
        if self.noise == "counter":
            keys = [[key_of(row, step, layer, purpose) for row in rows] for layer in layers]
            places = torch.arange(1, shape[0] * shape[1] + 1, device=device).mul_(GOLDEN)
            begun = torch.tensor(keys).to(device, non_blocking=True)
            drawn = uniform64(mix(begun[..., None] + places)).to(torch.float32)
        else:
            seeds = [mixed(row, step, layer + purpose) for layer in layers for row in rows]
            drawn = torch.stack([torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
            drawn = drawn.view(len(layers), len(rows), -1).to(device, non_blocking=True)
        return drawn.view(len(layers), len(rows), *shape)

    def _chance(self, call: Call, memory: Memory, layers: tuple[int, ...]) -> Tensor:
        """Uniform numbers [layer, batch, head, key] of this step, the same for a row alone or in a padded batch."""
        drawn = self._draws(call, memory, layers, (call.keys, 1 if self.aligned else call.q.shape[1])).mT
        drawn = drawn.expand(-1, call.q.shape[0], call.q.shape[1], -1)
        padding = None if call.forward is None else call.forward.padding
        if padding is None:
            return drawn

        def shifted() -> Tensor:
            columns = torch.arange(call.keys, device=call.q.device)
            return (columns - padding.to(columns.device, non_blocking=True)[:, None]).clamp(min=0)

        return drawn.gather(-1, call.once("shifted", shifted)[:, None, :].expand_as(drawn))
