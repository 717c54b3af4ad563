"""`attend` against torch's own attention on one device, the two taking turns: what the column sums cost there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch.nn.functional import scaled_dot_product_attention

from sinkscope.attention.attend import attend, choose_backend

GROUPS = 3  # of queries: masked, committed, prompt
# Few heads and short calls where a call takes long; what a large model makes where it does not.
CPU_LENGTHS, CPU_HEADS = (64, 256, 1024), 8
GPU_LENGTHS, GPU_HEADS = (256, 512, 1024, 2048, 4096, 8192), 32


@dataclass(frozen=True)
class Timed:
    """Seconds per call, medians over the rounds."""

    length: int
    heads: int
    dim: int
    causal: bool
    backend: str  # what `attend` ran
    sdpa: float
    attend: float

    @property
    def ratio(self) -> float:
        return self.attend / self.sdpa


def against_sdpa(
    device: torch.device, dtype: torch.dtype, repeats: int = 5, lengths: Sequence[int] | None = None,
    heads: int | None = None, dim: int = 128,
) -> list[Timed]:  # fmt: skip
    """[1, heads, length, dim] with three groups, causal and not; on a GPU up to 8192 positions of 32 heads."""
    large = device.type == "cuda"
    rows = []
    for length in lengths or (GPU_LENGTHS if large else CPU_LENGTHS):
        count = heads or (GPU_HEADS if large else CPU_HEADS)
        q, k, v = (torch.randn(1, count, length, dim, device=device, dtype=dtype) for _ in range(3))
        labels = torch.arange(length, device=device) % GROUPS
        for causal in (False, True):
            calls = (
                partial(scaled_dot_product_attention, q, k, v, is_causal=causal),
                partial(attend, q, k, v, groups=labels, group_count=GROUPS, causal=causal),
            )
            seconds = in_turns(calls, repeats, device)
            rows.append(Timed(length, count, dim, causal, choose_backend(q), *seconds))
    return rows


def in_turns(calls: Sequence[Callable[[], object]], repeats: int, device: torch.device) -> list[float]:
    """Median seconds of each call; they take turns, so that a busy moment hits all of them."""
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, times in zip(calls, taken, strict=True):
            _wait_for(device)
            started = time.perf_counter()
            call()
            _wait_for(device)
            if turn:  # the first round warms up, and compiles
                times.append(time.perf_counter() - started)
    return [median(times) for times in taken]


def _wait_for(device: torch.device) -> None:
    """A GPU works on while Python goes on: a clock must wait for it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
