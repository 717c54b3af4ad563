"""What the forward that is running now is: the decoder says it, observers and interventions read it.

Its step, its groups of queries, which keys each query may look at, and the seeds of random choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sinkscope.validation import LARGEST

GROUPS = ("masked", "committed", "prompt")  # kinds of query, in the order of the group axis
MASKED, COMMITTED, PROMPT = range(len(GROUPS))


class SparseKeys(NamedTuple):
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
    # Who sees whom: a query sees no key behind its own column, or the keys of `visible`, or all. Padding is nobody's key.
    causal: bool = False
    visible: Tensor | None = None  # bool [batch | 1, query, key]
    kept: Callable[[int], SparseKeys | None] | None = None  # of a layer under a sparse cache; None: no key is left out
    columns: Tensor | None = None  # [batch, query]: of each query, where they do not stand side by side from `start` on
    row_seeds: tuple[int, ...] | None = None  # one per row that counts: random choices are drawn again for each
    time: Tensor | None = None  # [batch | 1]: how noisy the canvas is, for models that are told
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

    def seen(self, keys: int, device: torch.device) -> Tensor:
        """[batch, group, key]: how many queries of each group may look at each key."""

        def count() -> Tensor:
            visible = None if self.visible is None else self.visible.to(device)
            seen = count_seen(self.labels.to(device), len(GROUPS), keys, visible, self.causal)
            real = self.real_keys(keys, device)
            return seen if real is None else seen.masked_fill(~real[:, None], 0)

        return self.once(("seen", keys), device, count)


def count_seen(labels: Tensor, groups: int, keys: int, visible: Tensor | None, causal: bool) -> Tensor:
    """[batch, group, key]: how many queries may look at each key, of those that count (labels [batch, query] from 0 on).

    visible: bool [batch | 1, query | 1, key]. causal: the last query stands at the last key, and none sees a later one.
    """
    queries = labels[:, None] == torch.arange(groups, device=labels.device)[:, None]  # [batch, group, query]
    if visible is not None:
        if visible.shape[1] == 1:  # one row for all queries
            return queries.sum(-1, keepdim=True) * visible
        return torch.stack([(visible & group[..., None]).sum(1) for group in queries.unbind(1)], 1)
    if not causal:
        return queries.sum(-1, keepdim=True).expand(-1, -1, keys)
    later = queries.flip(-1).cumsum(-1).flip(-1)  # from each query on
    before = later[..., :1].expand(-1, -1, keys - later.shape[-1])
    return torch.cat([before, later], -1)


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


# ---- random numbers that are a function of their place (SplitMix64): no state and no order, the same bits on every device

PRIME = 1_000_003


def signed(number: int) -> int:
    """A number modulo 2^64 as int64 has it."""
    return (number + 2**63) % 2**64 - 2**63


GOLDEN = signed(0x9E3779B97F4A7C15)
FACTORS = ((30, signed(0xBF58476D1CE4E5B9)), (27, signed(0x94D049BB133111EB)))


def mix(numbers: Tensor) -> Tensor:
    """Scramble int64, whose products wrap; torch's shifts keep the sign, so they are masked."""
    for shift, factor in FACTORS:
        numbers = (numbers >> shift).bitwise_and_((1 << (64 - shift)) - 1).bitwise_xor_(numbers).mul_(factor)
    return (numbers >> 31).bitwise_and_((1 << 33) - 1).bitwise_xor_(numbers)


def uniform64(numbers: Tensor) -> Tensor:
    """The upper 53 bits as a number in [0, 1), float64."""
    return (numbers >> 11).bitwise_and_((1 << 53) - 1).to(torch.float64).mul_(2.0**-53)


def mixed(*parts: int) -> int:
    """A seed for torch's own generator out of several numbers."""
    return reduce(lambda seed, part: seed * PRIME + part, parts) % LARGEST


def key_of(*parts: int) -> int:
    """One number of several, mixed on the host."""
    key = torch.zeros((), dtype=torch.int64)
    for part in parts:
        key = mix(key + signed(part + GOLDEN))
    return int(key)
