"""Forwards with a sparse cache: the block alone, against its own keys and those that were kept at the last refresh."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.attention.forward import SparseKeys, mixed, running
from sinkscope.attention.observe import Observation, observe
from sinkscope.decoding.forwards import Forwards, OverwritingLayer
from sinkscope.decoding.settings import SparseCache
from sinkscope.models.model import Model
from sinkscope.sinks.rules import Threshold, rule_from_dict


class SparseForwards(Forwards):
    """Hidden states of the whole canvas at a refresh, of the block in between."""

    def __init__(self, model: Model, settings: SparseCache, shift: bool) -> None:
        super().__init__(model, "sparse", shift)
        self.settings = settings
        self.since = 0  # forwards since the last refresh, itself included
        self.served = 0  # blocks that the last refresh has served
        self.refreshes = 0
        self.received: dict[int, Tensor] = {}  # by layer, [batch, head, key], at the last refresh
        self.mask: Tensor | None = None  # [batch, kept]: which of the kept columns are real; None: all
        self.due = False  # whether the drift asks for a refresh
        self.real: Tensor | None = None  # bool [batch, column]; None: all
        self.padding: Tensor | None = None  # [batch], on the CPU: padded columns at the left

    def window(self, block: tuple[int, int], columns: int) -> tuple[int, int]:
        if self._looks(block):
            return 0, columns
        # At the start of a block the one before it once more: its last tokens were written after it was last computed.
        return self._span((self.block or block)[0], block[1])

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        """The columns whose hidden states predict those from start to stop, and their own."""
        return max(start - int(self.shift), 0), stop

    def _looks(self, block: tuple[int, int]) -> bool:
        """Whether the next forward is one over the whole canvas."""
        settings = self.settings
        served = self.block != block and settings.blocks != "all" and self.served >= settings.blocks
        return self.block is None or served or self.due or self.since == settings.refresh

    def __call__(self, canvas: Tensor, real: Tensor | None, block: tuple[int, int], keep: bool = False) -> Tensor:
        """canvas [batch, position] → hidden [batch, window, width]."""
        self.real, positions = real, self._positions(canvas, real)
        start, stop = self.window(block, canvas.shape[1])
        if (start, stop) == (0, canvas.shape[1]):
            return self._refresh(canvas, block, positions)
        assert self.cache is not None
        moved = self.block != block
        if moved:
            self._lay_out((start, stop))
            self.block, self.served = block, self.served + 1
        self.since += 1
        hidden = self._run(canvas[:, start:stop], self.mask, positions[:, start:stop], self.cache)
        self.due = self._drifted()
        if moved:
            self._lay_out(self._span(*block))
        return hidden

    def cached_columns(self, layer: int) -> SparseKeys | None:
        """What a layer's attention is given of the canvas; None where the last forward saw all of it."""
        found = None if self.cache is None else self.cache.layers[layer]
        if not isinstance(found, SparseLayer) or self.since <= 1:
            return None
        return SparseKeys(*found.whole, found.seen, found.index)

    def _refresh(self, canvas: Tensor, block: tuple[int, int], positions: Tensor) -> Tensor:
        self.block, self.since, self.served, self.due = None, 1, 1, False
        self.refreshes += 1
        self.cache = DynamicCache()
        self.padding = None if self.real is None else (~self.real).sum(1).cpu()
        ranked = observe(self.model, keep=lambda layer, received: received.sum(2))
        with ranked if self.settings.ranks else nullcontext(Observation()) as seen:
            hidden = self._run(canvas, self.real, positions, self.cache)
        self.block, self.received = block, dict(zip(seen.layers, seen.kept, strict=True))
        self._lay_out(self._span(*block))
        return hidden

    def _lay_out(self, window: tuple[int, int]) -> None:
        """Choose what is kept around a window of columns, by what the last refresh saw."""
        assert self.cache is not None
        filled = cast("list[Any]", self.cache.layers)
        batch, _, columns, _ = filled[0].keys.shape
        inside = torch.zeros(columns, dtype=torch.bool, device=self.model.device)
        inside[window[0] : window[1]] = True
        real = torch.ones(batch, columns, dtype=torch.bool, device=inside.device)
        if self.real is not None:
            real = self.real
        # Every head of every layer keeps as many, so the host asks for the number once.
        most = int(((real & inside).sum(1) + self._budget(real & ~inside)).max())
        layers = []
        for number, layer in enumerate(filled):
            received, device = self.received.get(number), layer.keys.device
            index = self._index(number, received, layer.keys, inside.to(device), real.to(device), most, window)
            layers.append(SparseLayer(layer, window, index, received))
        self.cache.layers = cast("list[Any]", layers)
        # The same in every layer and head: padded columns come first.
        self.mask = None if self.real is None else self.real.gather(1, layers[0].index[:, 0])

    def _budget(self, outside: Tensor) -> Tensor:
        """[batch]: how many columns outside the window are kept."""
        return (outside.sum(1) * self.settings.keep).ceil().long()

    def _index(
        self, layer: int, received: Tensor | None, keys: Tensor, inside: Tensor, real: Tensor, most: int,
        window: tuple[int, int],
    ) -> Tensor:  # fmt: skip
        """[batch, kv head, kept]: columns in ascending order; rows with fewer real keys are filled with padded columns."""
        batch, heads, columns, _ = keys.shape
        outside = real & ~inside
        scores = self._scores(layer, received, (batch, heads, columns), real, outside, window)
        scores = scores.masked_fill(~outside[:, None], -torch.inf)
        order = scores.argsort(dim=-1, descending=True, stable=True)
        place = torch.empty_like(order).scatter_(-1, order, torch.arange(columns, device=keys.device).expand_as(order))
        chosen = (place < self._budget(outside)[:, None, None]) & outside[:, None]
        seen = chosen | (inside & real)[:, None]
        # Padded columns stand at the left: taking the last ones fills short rows without breaking the order.
        padded = (~real).long().cumsum(1)
        missing = most - seen.sum(-1)  # [batch, kv head]
        fill = (~real)[:, None] & (padded[:, None] > padded[:, -1:, None] - missing[..., None])
        # What is kept comes first, in its order: nonzero would make the host wait.
        return (~(seen | fill)).to(torch.uint8).argsort(dim=-1, stable=True)[..., :most]

    def _scores(
        self, layer: int, received: Tensor | None, shape: tuple[int, int, int], real: Tensor, outside: Tensor,
        window: tuple[int, int],
    ) -> Tensor:  # fmt: skip
        """[batch, kv head, column]: what is kept first."""
        columns = torch.arange(shape[2], device=outside.device)
        distance = torch.where(columns < window[0], window[0] - columns, columns - window[1] + 1)
        near = (-distance).double().expand(shape).clone()
        chosen = near
        if self.settings.by == "random":
            chosen = self._drawn(layer, shape).to(near, non_blocking=True)
        elif received is not None:
            share = received.shape[1] // shape[1]
            drawn = received.double().unflatten(1, (shape[1], share)).sum(2)
            drawn = drawn if self.settings.per == "head" else drawn.sum(1, keepdim=True).expand(shape)
            chosen = drawn
            if self.settings.by != "received":
                marks = self._sinks(received, real).unflatten(1, (shape[1], share)).any(2)
                marks = marks if self.settings.per == "head" else marks.any(1, keepdim=True).expand(shape)
                # The strongest sinks are the first to be kept, or the first to go; what is no sink is nearer than that.
                sign = 1.0 if self.settings.by == "sinks" else -1.0
                chosen = torch.where(marks, sign * (2.0 * shape[2] + drawn), near)
        nearest = (
            distance.masked_fill(~outside, shape[2] + 1).argsort(dim=-1, stable=True).argsort(-1) < self.settings.recent
        )
        return chosen + nearest[:, None] * 1e9

    def _drawn(self, layer: int, shape: tuple[int, int, int]) -> Tensor:
        """Uniform numbers of this refresh and layer, the same for a row alone or in a padded batch.

        All rows of a batch share a draw, unless the forward has a seed per row.
        """
        forward = running()
        seeds = (forward.row_seeds if forward is not None else None) or (0,)
        heads = shape[1] if self.settings.per == "head" else 1
        rows = []
        for row in range(shape[0]):
            seed = mixed(self.settings.seed, seeds[row % len(seeds)], self.refreshes, layer)
            rows.append(torch.rand(shape[2], heads, generator=torch.Generator().manual_seed(seed)).mT)
        drawn = torch.stack(rows).expand(shape)
        if self.padding is None:
            return drawn
        shifted = (torch.arange(shape[2]) - self.padding[:, None]).clamp(min=0)
        return drawn.gather(-1, shifted[:, None, :].expand(shape))

    def _sinks(self, received: Tensor, real: Tensor) -> Tensor:
        """bool [batch, head, column], by the rule."""
        rule = Threshold(3.0, unit="sum") if self.settings.rule is None else rule_from_dict(dict(self.settings.rule))
        return rule.marks(received, real.sum(1), real[:, None].expand_as(received))

    def _drifted(self) -> bool:
        if self.settings.drift is None or self.cache is None:
            return False
        layers = (layer for layer in self.cache.layers if isinstance(layer, SparseLayer))
        drifts = [layer.value_drift().to(self.model.device) for layer in layers]
        return bool(torch.stack(drifts).mean() > self.settings.drift)


class SparseLayer(OverwritingLayer):
    """Keys and values of the whole canvas, of which a forward replaces its window and sees the kept ones."""

    def __init__(self, filled: Any, window: tuple[int, int], index: Tensor, received: Tensor | None) -> None:
        super().__init__(filled, window)
        self.index = index  # [batch, kv head, kept]
        self.watched: Tensor | None = None  # [batch, kv head, 1, 1]: the block's most attended key, as a column
        if received is not None:
            heads = received.unflatten(1, (index.shape[1], -1)).sum(2)
            self.watched = (heads[..., window[0] : window[1]].argmax(-1) + window[0])[..., None, None]
            self.begun = self._state()
        self.seen = torch.zeros(self.whole[0].shape[:3], dtype=torch.bool, device=index.device).scatter_(2, index, True)
        spread = index.unsqueeze(-1)
        self.small = [whole.gather(2, spread.expand(-1, -1, -1, whole.shape[-1])) for whole in self.whole]
        # The window stands together among the kept keys, but further on where a head keeps more before it.
        before = (index < window[0]).sum(-1, keepdim=True)
        self.slots = (before + torch.arange(window[1] - window[0], device=index.device)).unsqueeze(-1)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        super().update(key_states, value_states)
        for small, states in zip(self.small, (key_states, value_states), strict=True):
            small.scatter_(2, self.slots.expand(-1, -1, -1, states.shape[-1]), states)
        return self.small[0], self.small[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.index.shape[-1], 0

    def value_drift(self) -> Tensor:
        """How far the value of the block's most attended key has turned since the refresh: 1 − cosine, mean over heads."""
        return 1 - torch.nn.functional.cosine_similarity(self._state(), self.begun, dim=-1).mean()

    def _state(self) -> Tensor:
        """Value of the watched key, [batch, kv head, 1, dim]."""
        assert self.watched is not None
        values = self.whole[1]
        return values.gather(2, self.watched.expand(-1, -1, 1, values.shape[-1])).float()
