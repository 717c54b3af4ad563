"""Explicit maps of one call, read or replaced on their way: scores before the softmax, the pattern, each head's result.

Everything is held whole, [batch, head, query, key], so this is for the layers that somebody asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sinkscope.attention.reference import Inputs, attended_scores, softmax

# The tensors of a call that a function may read or replace: [batch, head, query, key] twice, [batch, head, query, dim].
MAP_PLACES = ("scores", "pattern", "head_out")
Edit = Callable[[Tensor], Tensor | None]  # what stands in a tensor's place; None for itself
Editors = Mapping[str, Edit]  # by place


class ExplicitMaps(NamedTuple):
    """What a call comes to by the formula, with all edits."""

    out: Tensor  # [batch, head, query, value dim], dtype of q
    received: Tensor  # [batch, head, group, key], of the pattern really used
    is_edited: bool


def compute_maps(call: Inputs, editors: Sequence[Editors], extra: int = 0) -> ExplicitMaps:
    """Scores, pattern and result of a call, each after the functions that edit it.

    extra: so many keys in front stand on no position; functions do not see them.
    """
    needs_gradient = torch.is_grad_enabled() and any(one.requires_grad for one in (call.q, call.k, call.v))
    with ExitStack() as stack:
        # Tensors of inference mode do not count their changes, and a function may change its argument in place.
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not needs_gradient:
            stack.enter_context(torch.no_grad())
        scores, scores_edited = edit_map(attended_scores(call), "scores", editors, extra)
        pattern, pattern_edited = edit_map(softmax(scores), "pattern", editors, extra)
        values = call.v.to(call.work_dtype).repeat_interleave(call.share, dim=1)
        out = (pattern @ values).to(call.q.dtype)
        received = call.one_hot()[:, None] @ pattern
    return ExplicitMaps(out, received, scores_edited or pattern_edited)


def edit_map(made: Tensor, place: str, editors: Sequence[Editors], extra: int = 0) -> tuple[Tensor, bool]:
    """The tensor after all functions at `place`, in their order; and whether one of them changed or replaced it."""
    edited = False
    for functions in editors:
        function = functions.get(place)
        if function is None:
            continue
        given = made[..., extra:] if extra else made
        version = _version(given)
        found = function(given)
        if found is None or found is given:
            edited = edited or _version(given) != version  # in place
            continue
        made = torch.cat([made[..., :extra], found], -1) if extra else found
        edited = True
    return made, edited


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place, which tensors of inference mode do not know."""
    return 0 if tensor.is_inference() else tensor._version


def with_value_of(value: Tensor, path: Tensor) -> Tensor:
    """The bits of `value`, and the gradient of `path`, which is the same number by another way."""
    return value.detach() + (path - path.detach())


class _ReceivedGradient(torch.autograd.Function):
    """Hands on column sums that another backend made; their gradient is worked out by the formula, once it is asked for."""

    @staticmethod
    def forward(ctx: Any, received: Tensor, call: Inputs, q: Tensor, k: Tensor) -> Tensor:
        ctx.call = replace(call, v=call.v[..., :0])
        ctx.save_for_backward(q, k)
        return received.view_as(received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor, Tensor]:
        with torch.enable_grad():
            q, k = (part.detach().requires_grad_() for part in ctx.saved_tensors)
            call: Inputs = replace(ctx.call, q=q, k=k)
            received = call.one_hot()[:, None] @ softmax(attended_scores(call))
            for_q, for_k = torch.autograd.grad(received, (q, k), gradients[0])
        return None, None, for_q, for_k


def with_gradient(received: Tensor, call: Inputs) -> Tensor:
    """The same column sums, through which a gradient flows to q and k; no map is held until it does."""
    shape_only = replace(call, q=call.q.detach(), k=call.k.detach())
    apply: Any = _ReceivedGradient.apply
    with torch.enable_grad():
        made: Tensor = apply(received, shape_only, call.q, call.k)
    return made
