"""How attention calls are caught in someone else's module, and given back untouched when the `with` ends.

transformers models are caught through AttentionInterface *and* AttentionMaskInterface (with only the first, padding is
silently dropped); every other module by catching `scaled_dot_product_attention` while its forward runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sinkscope.attention.calls import Call, Tap, perform
from sinkscope.attention.context import running
from sinkscope.errors import CaptureError

NAME = "sinkscope"
_listeners: WeakKeyDictionary[nn.Module, list[_Listener]] = WeakKeyDictionary()
_original: dict[int, str] = {}  # id of a config → the implementation that it had before the outermost `with`


@dataclass
class Caught:
    """What was seen of one module while it was being listened to."""

    through_interface: int = 0
    through_sdpa: int = 0
    forwards: int = 0
    layers: set[int] = field(default_factory=set)


_catchers: WeakKeyDictionary[nn.Module, _Catcher] = WeakKeyDictionary()


@dataclass(eq=False)
class _Listener:
    tap: Tap
    caught: Caught


@contextmanager
def listening(root: nn.Module, tap: Tap) -> Iterator[Caught]:
    """Send every attention call inside `root` through `tap` until the `with` ends, on error too."""
    caught = Caught()
    with ExitStack() as stack:
        if any(_is_transformers(part) for part in root.modules()):
            stack.enter_context(_interface(root, tap, caught))
        if not _is_native(root):
            stack.enter_context(_sdpa(root, tap, caught))
        yield caught
    _complain(root, caught)


def _complain(root: nn.Module, caught: Caught) -> None:
    """After a `with` that ended well: was everything seen that should have been?"""
    name = type(root).__name__
    if caught.through_interface and caught.through_sdpa:
        raise CaptureError(
            f"{name} calls attention in two ways, through transformers' interface ({caught.through_interface} calls) and "
            f"directly ({caught.through_sdpa}); observe the two parts in turn, each by its own module."
        )
    if caught.forwards and not (caught.through_interface or caught.through_sdpa):
        raise CaptureError(
            f"Expected attention calls inside {name}, caught none in {caught.forwards} forwards; flash-attention kernels, fully "
            "compiled graphs and hand-written softmax cannot be seen: run the module in eager mode with sdpa attention."
        )
    expected = _attention_layers(root)
    if caught.through_interface and expected and (skipped := sorted(expected - caught.layers)):
        raise CaptureError(
            f"Expected an attention call from each of {len(expected)} layers of {name}, and layers {skipped[:8]} made none; "
            "a layer without softmax attention cannot be observed: name the others with layers=…"
        )


# ---- transformers ----


def _is_transformers(part: nn.Module) -> bool:
    return hasattr(part, "config") and hasattr(part.config, "_attn_implementation")


def _is_native(root: nn.Module) -> bool:
    """Whether the module is one of transformers' own classes, whose attention all goes through the interface."""
    return _is_transformers(root) and type(root).__module__.startswith("transformers.")


def _attention_layers(root: nn.Module) -> set[int]:
    parts = (part for part in root.modules() if "Attention" in type(part).__name__)
    numbers = (getattr(part, "layer_idx", None) for part in parts)
    return {number for number in numbers if isinstance(number, int)}


@contextmanager
def _interface(root: nn.Module, tap: Tap, caught: Caught) -> Iterator[None]:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, _interface_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    listener = _Listener(tap, caught)
    parts = list(root.modules())
    configs: list[Any] = list({id(part.config): part.config for part in parts if _is_transformers(part)}.values())
    before = [(config, config._attn_implementation) for config in configs]
    hook = root.register_forward_pre_hook(lambda *_: setattr(caught, "forwards", caught.forwards + 1))
    try:
        for config, implementation in before:
            _original.setdefault(id(config), implementation)
            config._attn_implementation = NAME
        for part in parts:
            _listeners.setdefault(part, []).append(listener)
        yield
    finally:
        hook.remove()
        for part in parts:
            _listeners[part].remove(listener)
        for config, implementation in before:
            config._attn_implementation = implementation
            if implementation != NAME:
                _original.pop(id(config), None)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _interface_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
    is_causal: bool | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """What transformers calls in place of sdpa while someone listens."""
    for refused in ("softcap", "s_aux", "position_bias"):
        if options.get(refused) is not None:
            raise CaptureError(
                f"{type(module).__name__} uses attention with {refused}, whose column sums are not defined here."
            )
    if module.training and options.get("dropout", 0.0):
        raise CaptureError(
            "Expected a module in evaluation mode, got one with active attention dropout; call .eval() first."
        )
    query, key = query.to(value.dtype), key.to(value.dtype)  # a float32 rotary embedding promotes both
    directed = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = directed and attention_mask is None and query.shape[2] > 1
    listeners = _listeners.get(module, [])
    layer = int(getattr(module, "layer_idx", 0) or 0)

    def untouched() -> Tensor:
        implementation = _implementation(module)
        out: Tensor = implementation(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, **options
        )[0]
        return out.transpose(1, 2)

    call = Call(
        layer, query, key, value, *_aligned(attention_mask, causal, query, key), scaling, running(), untouched, directed
    )
    for listener in listeners:
        listener.caught.through_interface += 1
        listener.caught.layers.add(layer)
    return perform(call, [listener.tap for listener in listeners]).transpose(1, 2).contiguous(), None


def _implementation(module: Any) -> Callable[..., Any]:
    """The attention function that the model had before anyone listened."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = _original.get(id(module.config), "sdpa")
    if name == "eager":
        eager: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
        return eager
    found: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS[name]
    return found


def _aligned(mask: Tensor | None, causal: bool, query: Tensor, key: Tensor) -> tuple[Tensor | None, bool]:
    """SDPA's causal flag is aligned at the upper left, `attend`'s at the lower right; they differ unless square."""
    if causal and query.shape[2] != key.shape[2]:
        shape = (query.shape[2], key.shape[2])
        return torch.ones(shape, dtype=torch.bool, device=query.device).tril()[None, None], False
    return mask, causal


# ---- any other torch module ----


@contextmanager
def _sdpa(root: nn.Module, tap: Tap, caught: Caught) -> Iterator[None]:
    listener = _Listener(tap, caught)
    if (catcher := _catchers.get(root)) is not None:  # nested: one catcher serves all who listen to the same module
        catcher.listeners.append(listener)
        try:
            yield
        finally:
            catcher.listeners.remove(listener)
        return
    catcher = _catchers[root] = _Catcher(listener)

    def enter(*_: object) -> None:
        catcher.depth += 1
        if catcher.depth == 1:
            for each in catcher.listeners:
                each.caught.forwards += not _is_transformers(root)
            catcher.calls = 0

    def leave(*_: object) -> None:
        catcher.depth -= 1

    hooks = [root.register_forward_pre_hook(enter), root.register_forward_hook(leave, always_call=True)]
    try:
        with catcher:
            yield
    finally:
        del _catchers[root]
        for hook in hooks:
            hook.remove()


class _Catcher(TorchFunctionMode):
    """Sees every torch function while it is on, and takes over the attention calls inside one module's forward."""

    def __init__(self, listener: _Listener) -> None:
        super().__init__()
        self.listeners = [listener]
        self.depth = 0
        self.calls = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.depth:
            if func is nn.functional.scaled_dot_product_attention:
                return self._attention(func, *args, **kwargs)
            if func is nn.functional.multi_head_attention_forward:
                return self._multi_head(func, args, kwargs)
        return func(*args, **kwargs)

    def _attention(
        self, func: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if dropout_p > 0:
            raise CaptureError(
                "Expected a module in evaluation mode, got one with active attention dropout; call .eval() first."
            )
        q, k, v = (part if part.dim() == 4 else part.reshape(-1, 1, *part.shape[-2:]) for part in (query, key, value))

        def untouched() -> Tensor:
            out = func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            return out.reshape(*q.shape[:-1], value.shape[-1])

        mask = attn_mask if attn_mask is None else attn_mask.reshape(*(1,) * (4 - attn_mask.dim()), *attn_mask.shape)
        call = Call(self.calls, q, k, v, *_aligned(mask, is_causal, q, k), scale, running(), untouched, is_causal)
        self._count()
        return perform(call, self.taps).reshape(*query.shape[:-1], value.shape[-1])

    def _multi_head(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """torch.nn.MultiheadAttention: its own weights are asked for, since its SDPA call is out of a mode's reach."""
        from sinkscope.attention.multihead import multi_head

        out = multi_head(func, args, kwargs, self.calls, self.taps)
        self._count()
        return out

    @property
    def taps(self) -> list[Tap]:
        return [listener.tap for listener in self.listeners]

    def _count(self) -> None:
        self.calls += 1
        for listener in self.listeners:
            listener.caught.through_sdpa += 1
