"""Keys and values of one layer under a cache policy: of all columns, or of those alone that the policy keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers.cache_utils import DynamicLayer

from sinkscope.attention.forward import SparseKeys

Span = tuple[int, int]


class StoredLayer(DynamicLayer):
    """A look fills it with the whole canvas; every other forward replaces what it computed; what is left out is freed."""

    keys: Tensor  # [batch, kv head, kept, dim]
    values: Tensor

    def __init__(self, arrived: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.arrived = arrived  # called when a look brings this layer's keys
        self.looking = True
        self.columns = 0  # of the canvas
        self.whole: tuple[Tensor, Tensor] | None = (
            None  # [batch, kv head, column, dim], where a later block may ask for it
        )
        self.index: Tensor | None = None  # [batch, kv head, kept]: columns in ascending order; None: all
        self.window: Span = (0, 0)
        self.slots = torch.empty(0)  # [batch, kv head, window, 1]: where the window stands among the kept keys
        self.computed: Tensor | None = None  # [batch, n]: columns that the next forward computes; None: the window
        self.frozen: Tensor | None = None  # bool [batch]: rows that wait, and whose keys stay as they are
        self.watched: Tensor | None = None  # [batch, kv head, 1, 1]: the window's most attended key
        self.begun: Tensor | None = None  # its value at the look

    def clear(self) -> None:
        """Forget everything: a look is about to bring all keys again."""
        self.looking, self.whole, self.index = True, None, None
        if self.is_initialized:
            self.keys, self.values = self.keys[..., :0, :].clone(), self.values[..., :0, :].clone()

    def lay_out(self, index: Tensor | None, window: Span, lives_on: bool, received: Tensor | None) -> None:
        """Keep these columns. lives_on: a later block chooses among all of them again, so that nothing is freed."""
        self.window, self.computed = window, None
        if self.whole is None:
            self.whole = (self.keys, self.values)
        whole = self.whole
        self.index = None if index is None or index.shape[-1] == whole[0].shape[2] else index
        if self.index is None:
            self.keys, self.values = whole
        else:
            spread = self.index.unsqueeze(-1)
            self.keys, self.values = (one.gather(2, spread.expand(-1, -1, -1, one.shape[-1])) for one in whole)
            # The window stands together among the kept keys, but further on where a head keeps more before it.
            before = (self.index < window[0]).sum(-1, keepdim=True)
            self.slots = (before + torch.arange(window[1] - window[0], device=before.device)).unsqueeze(-1)
        if not lives_on or self.index is None:
            self.whole = None
        if received is not None:
            inside = received.unflatten(1, (self.keys.shape[1], -1)).sum(2)[..., window[0] : window[1]]
            self.watched = inside.argmax(-1)[..., None, None]
            self.begun = self.watched_value()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.looking:
            self.keys, self.values, self.whole, self.index = key_states, value_states, None, None
            self.columns = key_states.shape[2]
            self.arrived()
            return key_states, value_states
        self.put(self.keys, key_states)
        self.put(self.values, value_states)
        if self.whole is not None:
            start, stop = self.window
            self.whole[0][..., start:stop, :] = key_states
            self.whole[1][..., start:stop, :] = value_states
        return self.keys, self.values

    def put(self, kept: Tensor, states: Tensor) -> None:
        """Write states [batch, kv head, n, dim] where their columns stand among the kept ones."""
        if self.index is None and self.computed is None:
            kept[..., slice(*self.window), :] = states
            return
        if self.computed is None:
            places = self.slots
        elif self.index is None:
            places = self.computed[:, None, :, None]
        else:
            inside = (self.computed - self.window[0])[:, None, :, None]
            places = self.slots.gather(2, inside.expand(-1, self.slots.shape[1], -1, -1))
        places = places.expand_as(states)
        if self.frozen is not None:
            states = torch.where(self.frozen[:, None, None, None], kept.gather(2, places), states)
        kept.scatter_(2, places, states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (query_length if self.looking else self.keys.shape[2]), 0

    @property
    def bytes(self) -> int:
        """Of keys and values that are held now."""
        if not self.is_initialized:
            return 0
        held = self.keys.nbytes + self.values.nbytes
        if self.whole is not None:
            held += self.whole[0].nbytes + self.whole[1].nbytes
        return held

    def sparse_keys(self) -> SparseKeys | None:
        """What attention is given of the canvas, and what it is not; None where it sees all of it."""
        if self.looking or self.index is None:
            return None
        seen = self.index.new_zeros((*self.index.shape[:2], self.columns), dtype=torch.bool).scatter_(
            2, self.index, True
        )
        return SparseKeys(*(self.whole or self.spread()), seen, self.index)

    def spread(self) -> tuple[Tensor, Tensor]:
        """Keys and values put where their columns stand, 0 where nothing is kept."""
        assert self.index is not None
        places = self.index.unsqueeze(-1)
        spread = []
        for kept in (self.keys, self.values):
            empty = kept.new_zeros(*kept.shape[:2], self.columns, kept.shape[-1])
            spread.append(empty.scatter_(2, places.expand_as(kept), kept))
        return spread[0], spread[1]

    def value_drift(self) -> Tensor:
        """How far the value of the window's most attended key has turned since the look: 1 − cosine, mean over heads."""
        assert self.begun is not None
        return 1 - cosine_similarity(self.watched_value(), self.begun, dim=-1).mean()

    def watched_value(self) -> Tensor:
        """[batch, kv head, 1, dim]."""
        assert self.watched is not None
        places = self.watched + self.window[0] if self.index is None else self.slots.gather(2, self.watched)
        return self.values.gather(2, places.expand(-1, -1, 1, self.values.shape[-1])).float()
