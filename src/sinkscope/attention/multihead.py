"""torch.nn.MultiheadAttention: it gives its weights when asked, which is all that a tap needs (it holds S × S)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sinkscope.attention.bias import as_bias
from sinkscope.attention.calls import Call, Outcome, Tap, merged
from sinkscope.attention.context import running
from sinkscope.attention.listeners import refuse_unseen
from sinkscope.errors import CaptureError

SIGNATURE = inspect.signature(functional.multi_head_attention_forward)


def multi_head(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], layer: int, taps: Sequence[Tap],
    count: Callable[[int, int], None],
) -> Any:  # fmt: skip
    """Stands in for torch.nn.functional.multi_head_attention_forward; inputs there are [position, batch, width].

    `count` is told how many heads and keys the call has.
    """
    bound = SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    refuse_unseen(given["dropout_p"] if given["training"] else 0.0)
    query, key, heads = given["query"], given["key"], given["num_heads"]
    if query.dim() != 3 or given["bias_k"] is not None or given["add_zero_attn"]:
        raise CaptureError("MultiheadAttention without a batch, or with bias_kv or zero attention, cannot be observed.")
    count(heads, key.shape[0])
    (queries, batch), keys = query.shape[:2], key.shape[0]
    padded = given["key_padding_mask"]
    real = None if padded is None else (~padded if padded.dtype == torch.bool else padded >= 0)[:, None, None, :]
    shape = (batch, heads, queries, keys)
    call = Call(
        layer, query.new_empty(batch, heads, queries, 0), key.new_empty(batch, heads, keys, 0),
        key.new_empty(batch, heads, keys, 0), real, False, None, running(), lambda: torch.empty(0), bool(given["is_causal"]),
    )  # fmt: skip
    changes = [change for tap in taps for change in tap.change(call)]
    if not changes and not any(tap.watches(call) or tap.ranks(call) for tap in taps):
        for tap in taps:
            tap.done(call)
        return func(*args, **kwargs)
    if any(
        change.values or change.keys or change.extra or change.keep_self or change.temperature != 1
        for change in changes
    ):
        raise CaptureError(
            "Changed keys and values, extra keys and keep_self are not possible inside torch.nn.MultiheadAttention."
        )
    drop, hide = merged(call, changes)[:2]
    wanted, averaged = given["need_weights"], given["average_attn_weights"]
    asked = {**given, "need_weights": True, "average_attn_weights": False}
    clean = _column_sums(func(**asked)[1], call) if drop is not None else None
    if changes:
        asked["attn_mask"] = _with_hidden(given["attn_mask"], drop, hide, shape)
    out, weights = func(**asked)
    received = _column_sums(weights, call)
    for tap in taps:
        tap.take(call, Outcome(received, received if clean is None else clean, drop, drop, hide))
        tap.done(call)
    return out, (weights.mean(1) if averaged else weights) if wanted else None


def _column_sums(weights: Tensor, call: Call) -> Tensor:
    """weights [batch, head, query, key] → received [batch, head, group, key]."""
    groups = torch.arange(call.group_count, device=weights.device)
    counted = (call.labels[:, None, :] == groups[None, :, None]).to(torch.float32)  # [batch, group, query]
    return torch.einsum("bgq,bhqk->bhgk", counted, weights.to(torch.float32).nan_to_num(0.0))


def _with_hidden(
    given: Tensor | None, drop: Tensor | None, may: Tensor | None, shape: tuple[int, int, int, int]
) -> Tensor:
    """MultiheadAttention's own mask, [batch × head, query, key] additive, with the dropped keys at −∞."""
    batch, heads, queries, keys = shape
    mask = torch.zeros(shape, device=(drop if drop is not None else may).device)  # type: ignore[union-attr]
    if given is not None:
        own = as_bias(~given, mask.dtype) if given.dtype == torch.bool else given
        mask = mask + (own if own.dim() == 2 else own.view(shape))
    if drop is not None:
        mask = mask.masked_fill(drop[:, :, None, :], -torch.inf)
    if may is not None:
        mask = mask.masked_fill(~may, -torch.inf)
    return mask.view(batch * heads, queries, keys)
