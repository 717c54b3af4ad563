"""Any other torch module: its calls of scaled_dot_product_attention are caught while its forward runs.

The module's forward is wrapped, so that the catcher is on in the thread that runs it, until it ends or raises, and nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from sinkscope.attention.bias import as_bias
from sinkscope.attention.calls import Call, Outcome, Tap, aligned, merged, perform
from sinkscope.attention.forward import running
from sinkscope.attention.listeners import Counted, Listener, listeners_at, refuse_unseen, unheard
from sinkscope.errors import CaptureError

_wrappers = Counted()
SIGNATURE = inspect.signature(functional.multi_head_attention_forward)


def through_sdpa(root: nn.Module) -> AbstractContextManager[None]:
    """Every attention call inside `root`'s forward comes to us until the last such `with` ends."""
    return _wrappers.put(root, partial(_wrapped, root))


def _wrapped(root: nn.Module) -> Callable[[], None]:
    before, own = vars(root).get("forward"), root.forward

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        catchers = (mode for mode in _get_current_function_mode_stack() if isinstance(mode, Catcher))
        if any(one.root is root for one in catchers):  # the module calls itself
            return own(*args, **kwargs)
        listeners = listeners_at(root)
        if not listeners:
            unheard(root)
            return own(*args, **kwargs)
        with Catcher(root, listeners):
            return own(*args, **kwargs)

    def undo() -> None:
        if vars(root).get("forward") is not forward:  # someone put another there meanwhile, and that stays
            return
        if before is None:
            del root.forward
        else:
            root.forward = before

    root.forward = forward
    return undo


class Catcher(TorchFunctionMode):
    """Sees every torch function while it is on, and takes over the attention calls of one forward."""

    def __init__(self, root: nn.Module, listeners: Sequence[Listener]) -> None:
        super().__init__()
        self.root, self.listeners, self.calls = root, listeners, 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and self.taps:
            return self._attention(func, *args, **kwargs)
        if func is functional.multi_head_attention_forward and self.taps:
            return self._multi_head(func, args, kwargs)
        return func(*args, **kwargs)

    def _attention(
        self, func: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        refuse_unseen(dropout_p)
        q, k, v = (part if part.dim() == 4 else part.reshape(-1, 1, *part.shape[-2:]) for part in (query, key, value))

        def untouched() -> Tensor:
            out = func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            return out.reshape(*q.shape[:-1], value.shape[-1])

        mask = attn_mask if attn_mask is None else attn_mask.reshape(*(1,) * (4 - attn_mask.dim()), *attn_mask.shape)
        call = Call(self.calls, q, k, v, *aligned(mask, is_causal, q, k), scale, running(), untouched, is_causal)
        self._count(q.shape[1], k.shape[2])
        return perform(call, self.taps).reshape(*query.shape[:-1], value.shape[-1])

    def _multi_head(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """torch.nn.MultiheadAttention: it gives its weights when asked, which is all that a tap needs (it holds S × S).

        Its own weights are asked for, since its SDPA call is out of a mode's reach. Inputs are [position, batch, width].
        """
        bound = SIGNATURE.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        refuse_unseen(given["dropout_p"] if given["training"] else 0.0)
        query, key, heads = given["query"], given["key"], given["num_heads"]
        if query.dim() != 3 or given["bias_k"] is not None or given["add_zero_attn"]:
            raise CaptureError(
                "MultiheadAttention without a batch, or with bias_kv or zero attention, cannot be observed."
            )
        taps, layer = self.taps, self.calls
        self._count(heads, key.shape[0])
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
        changed, drop, _ = merged(call, changes)
        wanted, averaged = given["need_weights"], given["average_attn_weights"]
        asked = {**given, "need_weights": True, "average_attn_weights": False}
        clean = _column_sums(func(**asked)[1], call) if drop is not None else None
        if changes:
            asked["attn_mask"] = _with_hidden(given["attn_mask"], drop, changed.mask, shape)
        out, weights = func(**asked)
        received = _column_sums(weights, call)
        for tap in taps:
            tap.take(call, Outcome(received, received if clean is None else clean, drop, drop, changed.mask))
            tap.done(call)
        return out, (weights.mean(1) if averaged else weights) if wanted else None

    @property
    def taps(self) -> list[Tap]:
        return [one.tap for one in self.listeners if one.is_open]

    def _count(self, heads: int, keys: int) -> None:
        for one in self.listeners:
            if one.is_open:
                one.note("directly", self.calls, heads, keys)
        self.calls += 1


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
