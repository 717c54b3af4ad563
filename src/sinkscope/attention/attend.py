"""One exact attention call that also says how much attention every key received.

It is made for inference: `tiled` and `triton` compute no gradients; `reference` does, and is chosen where q needs one.
"""

import importlib.util
import os
from contextlib import nullcontext

import torch
from torch import Tensor

from sinkscope.attention.inputs import Inputs, Result, check
from sinkscope.attention.reference import reference
from sinkscope.attention.tiled import tiled
from sinkscope.errors import AttentionError

BACKENDS = ("reference", "tiled", "triton")


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
    clean: also give the column sums as they would be without drop_keys, from the same scores.

    Returns (out, received), or with clean=True (out, received, clean received). out: [batch, head, query, value dim] in
    the dtype of q; received: [batch, head, group, key]. A query with nothing left to attend to gives zeros in both.
    """
    call = check(q, k, v, mask, causal, groups, scale, drop_keys, keep_self, clean, group_count, block, first)
    chosen = choose_backend(q, backend)
    kind = q.device.type
    # Autocast would put some of the products into half precision.
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        result = _run(chosen, call)
    if not clean:
        return result.out, result.received
    return result.out, result.received, result.received.clone() if result.clean is None else result.clean


def choose_backend(q: Tensor, backend: str = "auto") -> str:
    """The backend that `attend` will run for this q, to be written down beside its figures."""
    if backend == "auto":
        if torch.is_grad_enabled() and q.requires_grad:
            return "reference"
        return "triton" if q.device.type == "cuda" and _has_triton() else "tiled"
    if backend not in BACKENDS:
        raise AttentionError(f"backend must be auto, {', '.join(BACKENDS)}, but is {backend!r}.")
    if backend == "triton":
        if not _has_triton():
            raise AttentionError(
                "backend 'triton' needs the package triton: pip install -e '.[triton]', or use 'tiled'."
            )
        if q.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise AttentionError(f"backend 'triton' needs tensors on CUDA, but q is on {q.device}: use 'tiled'.")
    return backend


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _run(backend: str, call: Inputs) -> Result:
    if call.queries == 0 or call.keys == 0 or call.batch == 0:
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
