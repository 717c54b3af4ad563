"""Any other torch module: its calls of scaled_dot_product_attention are caught while its forward runs.

A forward hook turns the catcher on and off, so that it is on in the thread that runs the forward and nowhere else.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from sinkscope.attention.calls import Call, Tap, aligned, perform
from sinkscope.attention.context import running
from sinkscope.attention.interface import is_transformers
from sinkscope.attention.listeners import Counted, Listener, listeners_at, refuse_unseen, unheard
from sinkscope.attention.multihead import multi_head

_hooks = Counted()


class _Thread(threading.local):
    """The forwards that this thread is inside of, outermost first."""

    def __init__(self) -> None:
        self.catchers: list[Catcher] = []


_this_thread = _Thread()


@contextmanager
def through_sdpa(root: nn.Module) -> Iterator[None]:
    """Every attention call inside `root`'s forward comes to us until the last such `with` ends."""
    try:
        with _hooks.put(root, lambda: _hooked(root)):
            yield
    finally:
        _forget_interrupted()


def _hooked(root: nn.Module) -> Callable[[], None]:
    hooks = ExitStack()
    hooks.callback(root.register_forward_pre_hook(_enter).remove)
    hooks.callback(root.register_forward_hook(_leave, always_call=True).remove)
    return hooks.close


def _enter(root: nn.Module, *_: object) -> None:
    catchers = _this_thread.catchers
    inside = next((one for one in catchers if one.root is root), None)
    if inside is not None and not _is_running(inside.frame):  # Ctrl-C ended that forward without a word
        _turn_off(inside)
        inside = None
    if inside is not None:  # the module calls itself
        inside.depth += 1
        return
    listeners = listeners_at(root)
    if not listeners:
        unheard(root)
        return
    for one in listeners:
        one.forwards += not is_transformers(root)
    catcher = Catcher(root, listeners, sys._getframe(1))
    catchers.append(catcher)
    catcher.__enter__()  # type: ignore[no-untyped-call]


def _leave(root: nn.Module, *_: object) -> None:
    catcher = next((one for one in _this_thread.catchers if one.root is root), None)
    if catcher is None:
        return
    catcher.depth -= 1
    if not catcher.depth:
        _turn_off(catcher)


def _turn_off(catcher: Catcher) -> None:
    _this_thread.catchers.remove(catcher)
    if _get_current_function_mode() is catcher:
        catcher.__exit__(None, None, None)


def _forget_interrupted() -> None:
    """Ctrl-C inside a forward skips torch's hooks; what it left on is turned off when the `with` ends."""
    for catcher in list(reversed(_this_thread.catchers)):
        if not _is_running(catcher.frame):
            _turn_off(catcher)


def _is_running(frame: FrameType) -> bool:
    """Whether that function call is still on the stack."""
    here: FrameType | None = sys._getframe()
    while here is not None and here is not frame:
        here = here.f_back
    return here is frame


class Catcher(TorchFunctionMode):
    """Sees every torch function while it is on, and takes over the attention calls of one forward."""

    def __init__(self, root: nn.Module, listeners: Sequence[Listener], frame: FrameType) -> None:
        super().__init__()
        self.root, self.listeners, self.frame = root, listeners, frame
        self.depth = 1
        self.calls = 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention and self.taps:
            return self._attention(func, *args, **kwargs)
        if func is nn.functional.multi_head_attention_forward and self.taps:
            # Its own weights are asked for, since its SDPA call is out of a mode's reach.
            return multi_head(func, args, kwargs, self.calls, self.taps, self._count)
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

    @property
    def taps(self) -> list[Tap]:
        return [one.tap for one in self.listeners if one.is_open]

    def _count(self, heads: int, keys: int) -> None:
        for one in self.listeners:
            if one.is_open:
                one.note("directly", self.calls, heads, keys)
        self.calls += 1
