"""What the forward that is running now is: the decoder says it, observers and interventions read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

GROUPS = ("masked", "committed", "prompt")  # kinds of query, in the order of the group axis
MASKED, COMMITTED, PROMPT = range(len(GROUPS))


class Kept(NamedTuple):
    """What a sparse cache hands one layer's attention, and what it leaves out."""

    keys: Tensor  # [batch, kv head, column, dim], of the whole canvas
    values: Tensor
    seen: Tensor  # bool [batch, kv head, column]: what the attention gets; a padded column may be among them, masked
    columns: Tensor  # [batch, kv head, kept]: the columns of what it gets, in ascending order


@dataclass(frozen=True)
class Forward:
    """One forward of a generation."""

    run: object  # identity of the generation: a new one resets whatever was remembered from the last forward
    step: int
    labels: Tensor  # [batch, query]: index into GROUPS, −1 where padded
    rows: int  # rows of the batch that count; with guidance the second half is the unconditional copy
    start: int  # column of the first query
    padding: Tensor | None  # [batch]: padded columns at the left; None where there are none
    prompt: int  # columns of the prompt, padding included
    real: Tensor | None = None  # bool [batch, key]: keys that are not padding, where padding is not only at the left
    kind: str = "denoise"  # "prefill" and "store" fill a cache and belong to no step; "encode": nor is it listened to
    ids: Tensor | None = None  # [batch, column]: the tokens that stand on the canvas during this forward
    kept: Callable[[int], Kept | None] | None = None  # of a layer under a sparse cache; None where all keys are seen
    row_seeds: tuple[int, ...] | None = None  # one per row that counts: random choices are drawn again for each
    most: int | None = None  # steps that the generation can take at most; None where nobody knows
    made: dict[Any, Tensor] = field(init=False, repr=False, compare=False, default_factory=dict)

    @property
    def share(self) -> float | None:
        """Share of the generation that is behind: this step over the most that its settings can take."""
        return self.step / self.most if self.most else None

    def once(self, key: object, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
        """What all layers of this forward share, made by the first of them on each device."""
        if (key, device) not in self.made:
            self.made[key, device] = make()
        return self.made[key, device]

    def real_keys(self, keys: int, device: torch.device) -> Tensor | None:
        """bool [batch, key]: keys that are not padding; None where none is."""
        real, padding = self.real, self.padding
        if real is not None:
            return self.once(("real", keys), device, lambda: real[:, :keys].to(device))
        if padding is None:
            return None

        def beyond() -> Tensor:
            return torch.arange(keys, device=device) >= padding.to(device, non_blocking=True).unsqueeze(1)

        return self.once(("real", keys), device, beyond)


_running: ContextVar[Forward | None] = ContextVar("sinkscope_forward", default=None)
_seeds: ContextVar[tuple[int, ...] | None] = ContextVar("sinkscope_row_seeds", default=None)


def running() -> Forward | None:
    return _running.get()


def row_seeds() -> tuple[int, ...] | None:
    """The seeds that `seeded` names, one per row of the batch."""
    return _seeds.get()


@contextmanager
def forward_context(forward: Forward) -> Iterator[None]:
    seeds = _seeds.get()
    if seeds is not None and forward.row_seeds is None:
        forward = replace(forward, row_seeds=seeds)
    token = _running.set(forward)
    try:
        yield
    finally:
        _running.reset(token)


@contextmanager
def seeded(row_seeds: tuple[int, ...]) -> Iterator[None]:
    """Every forward inside has these seeds, one per row of the batch: random choices are then drawn again for each row."""
    token = _seeds.set(row_seeds)
    try:
        yield
    finally:
        _seeds.reset(token)
