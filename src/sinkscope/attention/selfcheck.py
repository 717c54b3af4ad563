"""What `bench` and `check --all` say of a machine's attention: every backend against the formula, and against torch's in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sinkscope.attention.attend import BACKENDS, attend, choose_backend
from sinkscope.errors import AttentionError

QUERIES, KEYS, HEADS, KV_HEADS = 70, 83, 4, 2  # no multiple of a tile
# Most that a column of 70 queries may be off: rounded numbers go in, sums in float32 come out.
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def against_reference(device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Largest differences from the float64 formula, of every backend that runs on the device, by kind of call and head size.

    The same rounded numbers go into the formula.
    """
    rows: list[dict[str, Any]] = []
    for dim in (64, 128):
        generator = torch.Generator().manual_seed(dim)
        shapes = ((2, HEADS, QUERIES, dim), (2, KV_HEADS, KEYS, dim), (2, KV_HEADS, KEYS, dim))
        q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
        for name, words in kinds(dtype).items():
            exact = attend(q.double(), k.double(), v.double(), **words, backend="reference")
            placed: dict[str, Any] = {
                key: value.to(device) if isinstance(value, Tensor) else value for key, value in words.items()
            }
            for backend in BACKENDS[1:]:
                try:
                    choose_backend(q.to(device), backend)
                except AttentionError:
                    continue
                found = attend(q.to(device), k.to(device), v.to(device), **placed, backend=backend)
                off = [float((one.cpu().double() - other).abs().max()) for one, other in zip(found, exact, strict=True)]
                rows.append(
                    {"backend": backend, "call": name, "dtype": str(dtype).removeprefix("torch."), "dim": dim,
                     "out": off[0], "received": max(off[1:]), "limit": LIMITS[dtype], "holds": max(off) <= LIMITS[dtype]}
                )  # fmt: skip
    return rows


def kinds(dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    """Arguments of `attend` beside q, k and v."""
    groups = {"groups": torch.arange(QUERIES) % 3, "group_count": 3}
    generator = torch.Generator().manual_seed(0)
    drop = torch.rand(2, HEADS, KEYS, generator=generator) < 0.05
    pairs = torch.rand(2, 1, QUERIES, KEYS, generator=generator) < 0.8
    padding = (torch.arange(KEYS) >= torch.tensor([[0], [9]]))[:, None, None]
    return {
        "plain": groups, "causal": {**groups, "causal": True}, "blocks": {**groups, "block": 16},
        "padded": {**groups, "mask": padding}, "masked pairs": {**groups, "mask": pairs},
        "biased": {**groups, "mask": torch.randn(1, HEADS, 1, KEYS, generator=generator).to(dtype)},
        "dropped": {**groups, "drop_keys": drop, "clean": True},
        "dropped, padded": {**groups, "drop_keys": drop, "clean": True, "mask": padding, "keep_self": True},
    }  # fmt: skip


def against_sdpa(
    device: torch.device, dtype: torch.dtype, repeats: int = 5, lengths: Sequence[int] | None = None,
    heads: int | None = None, dim: int = 128,
) -> list[dict[str, Any]]:  # fmt: skip
    """Median seconds per call over [1, heads, length, dim] with three groups, causal and not; backend: what `attend` ran.

    On a GPU up to 8192 positions of 32 heads.
    """
    # Few heads and short calls where a call takes long; what a large model makes where it does not.
    large = device.type == "cuda"
    count = heads or (32 if large else 8)
    rows: list[dict[str, Any]] = []
    for length in lengths or ((256, 512, 1024, 2048, 4096, 8192) if large else (64, 256, 1024)):
        q, k, v = (torch.randn(1, count, length, dim, device=device, dtype=dtype) for _ in range(3))
        labels = torch.arange(length, device=device) % 3  # masked, committed, prompt
        for causal in (False, True):
            calls = (
                partial(scaled_dot_product_attention, q, k, v, is_causal=causal),
                partial(attend, q, k, v, groups=labels, group_count=3, causal=causal),
            )
            plain, ours = in_turns(calls, repeats, device)
            rows.append(
                {"length": length, "heads": count, "dim": dim, "causal": causal, "backend": choose_backend(q),
                 "sdpa": plain, "attend": ours, "ratio": ours / plain}
            )  # fmt: skip
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
