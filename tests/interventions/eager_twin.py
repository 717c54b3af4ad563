"""Masking once more, the slow and obvious way: plain eager attention with the masked columns written in by hand.

Nothing of sinkscope's attention is used: the model runs with an attention function of its own, which keeps the maps of the
last forward and asks a plain Python function which keys to hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import sinkscope as sk
from sinkscope.decoding.canvas import Step

NAME = "eager_twin"


@dataclass
class Head:
    """What a choice may look at: one head of one layer, before a forward."""

    layer: int
    head: int
    columns: list[list[list[float]]]  # [layer][head][key]: what each key received, as the last forward left it
    seen: list[int]  # [key]: by how many rows
    rows: int  # how many rows there were
    norms: list[float]  # [key]: length of the value at this forward
    kinds: list[str]  # [key]
    last: list[list[list[float]]]  # [layer][head][key]: the last row alone

    @property
    def own(self) -> list[float]:
        return self.columns[self.layer][self.head]


Choose = Callable[[Head], set[int]]


@dataclass
class Twin:
    """A generation under a choice of keys. Maps are those without masking (rank="clean")."""

    choose: Choose
    kinds_of: Callable[[list[int]], list[str]]
    canvas: list[int]
    causal: bool
    always: frozenset[int] = frozenset()  # hidden from the first forward on, before there is anything to rank
    maps: dict[int, Tensor] = field(default_factory=dict)  # layer → [head, query, key] of all rows so far
    before: dict[int, Tensor] = field(default_factory=dict)
    picked: list[set[tuple[int, int]]] = field(default_factory=list)  # one per call: (head, key)

    def attention(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
                  scaling: float | None = None, is_causal: bool | None = None, **_: Any) -> tuple[Tensor, None]:  # fmt: skip
        assert len(query) == 1 and mask is None
        layer, keys = module.layer_idx, key.shape[2]
        if layer == 0:
            self.before = dict(self.maps)
        share = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(share, dim=1)[0] for part in (key, value))
        scores = query[0] @ key.transpose(1, 2) * scaling  # [head, query, key]
        if self.causal:
            place = torch.arange(keys - query.shape[2], keys)
            scores = scores.masked_fill(torch.arange(keys)[None, :] > place[:, None], -torch.inf)
        clean = scores.softmax(-1)
        if self.causal and layer in self.maps:
            old = torch.nn.functional.pad(self.maps[layer], (0, keys - self.maps[layer].shape[-1]))
            self.maps[layer] = torch.cat([old, clean], dim=1)
        else:
            self.maps[layer] = clean
        hidden = {(head, place) for head in range(len(scores)) for place in self.always}
        if self.before:
            for head in range(len(scores)):
                hidden |= {(head, place) for place in self.choose(self._head(layer, head, value, keys))}
        self.picked.append(hidden)
        for head, place in hidden:
            scores[head, :, place] = -torch.inf
        # A row without any key left attends to nothing: its softmax is no number, its output 0.
        return (scores.softmax(-1).nan_to_num(0.0) @ value)[None].transpose(1, 2).contiguous(), None

    def _head(self, layer: int, head: int, value: Tensor, keys: int) -> Head:
        maps = [
            torch.nn.functional.pad(self.before[one], (0, keys - self.before[one].shape[-1]))
            for one in sorted(self.before)
        ]
        rows = maps[0].shape[1]
        seen = [rows - place if self.causal else rows for place in range(keys)]
        return Head(
            layer, head, [one.sum(1).tolist() for one in maps], [max(count, 0) for count in seen], rows,
            [float(vector.norm()) for vector in value[head]], self.kinds_of(self.canvas)[:keys],
            [one[:, -1].tolist() for one in maps],
        )  # fmt: skip

    def on_step(self, step: Step) -> None:
        self.canvas = step.canvas[0].tolist()


@contextmanager
def running(model: sk.Model, twin: Twin) -> Iterator[None]:
    AttentionInterface.register(NAME, twin.attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


def decode_by_hand(
    model: sk.Model, ids: Tensor, settings: sk.Decode, choose: Choose, kinds_of: Callable[[list[int]], list[str]],
    always: frozenset[int] = frozenset(),
) -> tuple[Tensor, list[set[tuple[int, int]]]]:  # fmt: skip
    """Tokens, and the (head, key) pairs that were hidden in each call."""
    blank = model.mask_id if model.mask_id is not None else 0
    twin = Twin(choose, kinds_of, ids[0].tolist() + [blank] * settings.length, model.causal, always)
    with running(model, twin):
        done = sk.decode(model, ids, settings, on_step=twin.on_step)
    return done.tokens, twin.picked


def largest(scores: list[float], k: int, may: Callable[[int], bool] = lambda place: True) -> set[int]:
    """The k largest positive scores among keys that may be taken, lowest place first where equal."""
    there = [place for place, score in enumerate(scores) if score > 0 and may(place)]
    return set(sorted(there, key=lambda place: (-scores[place], place))[:k])
