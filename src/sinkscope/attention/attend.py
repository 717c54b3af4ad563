"""One exact attention call that also says how much attention every key received.

It is made for inference: `tiled` and `triton` compute no gradients; `reference` does, and is chosen where q needs one.
"""

import importlib.util
import os
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from sinkscope.attention.reference import Inputs, Result, reference
from sinkscope.attention.tiled import tiled
from sinkscope.errors import AttentionError
from sinkscope.validation import Number, validate

BACKENDS = ("reference", "tiled", "triton")
SCALE = TypeAdapter(Number | None)
CAP = TypeAdapter(Annotated[float | None, Field(strict=True, gt=0, allow_inf_nan=False)])
COUNT = TypeAdapter(Annotated[int | None, Field(strict=True, ge=1, le=1 << 31)])  # of groups and blocks
PLACE = TypeAdapter(Annotated[int | None, Field(strict=True, ge=-(1 << 31), le=1 << 31)])  # positions
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    groups: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
    drop_keys: Tensor | None = None,
    clean: bool = False,
    group_count: int | None = None,
    keep_self: bool = False,
    block: int | None = None,
    first: int | None = None,
    cap: float | None = None,
) -> tuple[Tensor, ...]:
    """Attention output, and the column sums of the probabilities that made it (fp32, plain sums over queries).

    q: [batch, head, query, dim]; k, v: [batch, kv head, key, dim], where head is a multiple of kv head.
    mask: bool (True = may attend) or additive, [batch or 1, head or 1, query or 1, key].
    causal: query i sits at position first + i and sees no later key; goes together with mask.
    block: block-causal. The query at position p sees the keys j with j // block ≤ p // block, its own block to the end;
    blocks are counted from key 0. Goes together with everything but causal, which is block = 1.
    first: position of query 0 among the keys, for causal, block and keep_self; key − query unless given. A window of
    queries in the middle has keys after it too.
    groups: an integer label per query, [query] or [batch, query]; −1 counts nowhere. None: one group of all.
    group_count: how many groups there are, where not every label need occur.
    drop_keys: bool [batch or 1, head or 1, key]; such a key gets −∞ before the softmax, from every query;
    keep_self: except from the query at its own position.
    cap: scores become cap · tanh(score / cap) before any mask (not by `triton`).
    clean: also give the column sums as they would be without drop_keys, from the same scores.

    Returns (out, received), or with clean=True (out, received, clean received). out: [batch, head, query, value dim] in
    the dtype of q; received: [batch, head, group, key]. A query with nothing left to attend to gives zeros in both.
    """
    call = check(q, k, v, mask, causal, groups, scale, drop_keys, keep_self, clean, group_count, block, first, cap)
    by_formula = backend == "auto" and torch.is_grad_enabled() and (k.requires_grad or v.requires_grad)
    result = run_backend("reference" if by_formula else choose_backend(q, backend, capped=cap is not None), call)
    if not clean:
        return result.out, result.received
    return result.out, result.received, result.received.clone() if result.clean is None else result.clean


def choose_backend(q: Tensor, backend: str = "auto", capped: bool = False) -> str:
    """The backend that `attend` will run for this q, to be written down beside its figures; capped: scores have a cap."""
    if backend == "auto":
        if torch.is_grad_enabled() and q.requires_grad:
            return "reference"
        return "triton" if q.device.type == "cuda" and _has_triton() and not capped else "tiled"
    if backend not in BACKENDS:
        raise AttentionError(f"backend must be auto, {', '.join(BACKENDS)}, but is {backend!r}.")
    if backend == "triton":
        if capped:
            raise AttentionError("backend 'triton' knows no cap of scores: use 'tiled'.")
        if not _has_triton():
            raise AttentionError(
                "backend 'triton' needs the package triton: pip install -e '.[triton]', or use 'tiled'."
            )
        if q.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise AttentionError(f"backend 'triton' needs tensors on CUDA, but q is on {q.device}: use 'tiled'.")
    return backend


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def run_backend(backend: str, call: Inputs) -> Result:
    """What a backend makes of a call whose tensors fit together."""
    kind = call.q.device.type
    if torch.is_autocast_enabled(kind):  # it would put some of the products into half precision
        with torch.autocast(kind, enabled=False):
            return run_backend(backend, call)
    if 0 in call.q.shape or 0 in call.k.shape:
        return Result(call.empty_out().zero_(), call.zero_received(), None)
    if backend == "reference":
        return reference(call)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (call.q, call.k, call.v)):
        raise AttentionError(
            f"backend {backend!r} computes no gradients, but q, k or v needs one: use torch.no_grad() or 'reference'."
        )
    if backend == "tiled":
        return tiled(call)
    from sinkscope.attention.triton import triton_attention

    return triton_attention(call)


# ---- what does not fit together is refused


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    groups: Tensor | None,
    scale: float | None,
    drop_keys: Tensor | None,
    keep_self: bool,
    clean: bool,
    group_count: int | None,
    block: int | None = None,
    first: int | None = None,
    cap: float | None = None,
) -> Inputs:
    """Refuse what does not fit together, in one sentence; otherwise hand on what the backends need."""
    tensors: dict[str, object] = {"q": q, "k": k, "v": v, "mask": mask, "groups": groups, "drop_keys": drop_keys}
    for name, one in tensors.items():
        if not isinstance(one, Tensor) and (one is not None or name in ("q", "k", "v")):
            raise AttentionError(f"{name} must be a tensor, but is {type(one).__name__}: convert it with torch.")
    validate(SCALE, scale, "scale", AttentionError)
    validate(CAP, cap, "cap", AttentionError)
    validate(COUNT, block, "block", AttentionError)
    validate(COUNT, group_count, "group_count", AttentionError)
    validate(PLACE, first, "first", AttentionError)
    if causal and block is not None:
        raise AttentionError(f"causal and block = {block} cannot go together: causal is block = 1.")
    _check_states(q, k, v)
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    if mask is not None:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise AttentionError(f"mask must be bool (True = may attend) or additive floats, but is {mask.dtype}.")
        # A NaN would be added to scores, and every row that meets it would be lost; bool masks, the usual ones, have none.
        # Elsewhere looking would make the device wait at every layer.
        if mask.is_floating_point() and mask.device.type == "cpu" and bool((mask.isnan() | mask.isposinf()).any()):
            raise AttentionError("mask must hold finite numbers or -inf to add to the scores, but has NaN or +inf.")
        _check_fit("mask", mask, (batch, heads, queries, keys), q.device)
    if drop_keys is not None:
        if drop_keys.dtype != torch.bool:
            raise AttentionError(f"drop_keys must be bool (True = nobody may attend), but is {drop_keys.dtype}.")
        _check_fit("drop_keys", drop_keys, (batch, heads, keys), q.device)
    offset = keys - queries if first is None else first  # what a cache already holds stands before query 0
    labels, count = _labels(groups, batch, queries, group_count, q.device)
    return Inputs(
        q, k, v, mask, 1 if causal else block, offset, dim**-0.5 if scale is None else scale, labels, count, drop_keys,
        keep_self, clean, cap,
    )  # fmt: skip


def _check_states(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, one in (("k", k), ("v", v)):
        if one.dtype != q.dtype or one.device != q.device:
            raise AttentionError(
                f"q, k and v must share one dtype and device, but q is {q.dtype} on {q.device} and {name} is "
                f"{one.dtype} on {one.device}: convert one of them."
            )
    if q.dtype not in DTYPES:
        raise AttentionError(f"q, k and v must be float32, bfloat16, float16 or float64, but they are {q.dtype}.")
    fit = q.dim() == k.dim() == v.dim() == 4 and len(q) == len(k) and k.shape[:3] == v.shape[:3]
    if not fit or k.shape[1] == 0 or q.shape[1] % k.shape[1] or k.shape[3] != q.shape[3]:
        raise AttentionError(
            "q must be [batch, head, query, dim], k [batch, kv head, key, dim] and v [batch, kv head, key, value dim], where head "
            f"is a multiple of kv head, but their shapes are {list(q.shape)}, {list(k.shape)} and {list(v.shape)}."
        )


def _check_fit(name: str, tensor: Tensor, sizes: tuple[int, ...], device: torch.device) -> None:
    """Of these sizes, all but the last of which may be 1, and where q is."""
    fits = tensor.dim() == len(sizes) and tensor.shape[-1] == sizes[-1]
    if not fits or any(one not in (1, size) for one, size in zip(tensor.shape[:-1], sizes[:-1], strict=True)):
        expected = "".join(f"{size} or 1, " for size in sizes[:-1])
        raise AttentionError(f"{name} must be [{expected}{sizes[-1]}], but has shape {list(tensor.shape)}.")
    if tensor.device != device:
        raise AttentionError(f"{name} must be on {device} with q, but is on {tensor.device}: move it there.")


def _labels(
    groups: Tensor | None, batch: int, queries: int, group_count: int | None, device: torch.device
) -> tuple[Tensor, int]:
    """Labels as [batch | 1, query], and how many groups there are."""
    if groups is None:
        return torch.zeros(1, queries, dtype=torch.long, device=device), group_count or 1
    if groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        raise AttentionError(f"groups must be integer labels, one per query, but is {groups.dtype}.")
    labels = groups[None] if groups.dim() == 1 else groups
    if labels.dim() != 2 or labels.shape[0] not in (1, batch) or labels.shape[1] != queries:
        raise AttentionError(f"groups must be [{queries}] or [{batch}, {queries}], but has shape {list(groups.shape)}.")
    labels = labels.to(device=device, dtype=torch.long)
    if group_count is not None and device.type != "cpu":
        return labels, group_count  # looking at the labels would make the device wait at every layer
    low, high = (int(end) for end in labels.aminmax()) if labels.numel() else (0, 0)
    if low < -1:
        raise AttentionError(f"groups must be labels from 0 on, or -1 for queries that count nowhere, but has {low}.")
    if group_count is not None and high >= group_count:
        raise AttentionError(f"groups must be below group_count = {group_count}, but has the label {high}.")
    return labels, group_count or max(high + 1, 1)
