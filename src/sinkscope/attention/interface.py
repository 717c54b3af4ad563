"""transformers models, through AttentionInterface *and* AttentionMaskInterface (with only the first, padding is dropped)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.calls import Call, aligned, perform
from sinkscope.attention.forward import running
from sinkscope.attention.listeners import Counted, anyone_listens, listeners_of, refuse_unseen, unheard
from sinkscope.errors import CaptureError

NAME = "sinkscope"
_original: dict[int, str] = {}  # id of a config → the implementation that it had before anyone listened
_configs = Counted()


def is_transformers(part: nn.Module) -> bool:
    return hasattr(part, "config") and hasattr(part.config, "_attn_implementation")


def is_native(root: nn.Module) -> bool:
    """Whether the module is one of transformers' own classes, whose attention all goes through the interface."""
    return is_transformers(root) and type(root).__module__.startswith("transformers.")


def attention_layers(root: nn.Module) -> set[int]:
    parts = (part for part in root.modules() if "Attention" in type(part).__name__)
    numbers = (getattr(part, "layer_idx", None) for part in parts)
    return {number for number in numbers if isinstance(number, int)}


@contextmanager
def through_interface(root: nn.Module) -> Iterator[None]:
    """Every attention call inside `root` comes to us until the last such `with` ends."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, _uncompiled())
    AttentionMaskInterface.register(NAME, _mask)
    configs: list[Any] = list({id(one.config): one.config for one in root.modules() if is_transformers(one)}.values())
    with ExitStack() as stack:
        for config in configs:
            stack.enter_context(_configs.put(config, partial(_renamed, config)))
        yield


def _renamed(config: Any) -> Callable[[], None]:
    _original[id(config)] = config._attn_implementation
    _set_implementation(config, NAME)

    def undo() -> None:
        before = _original.pop(id(config))
        if config._attn_implementation == NAME:  # else someone chose another meanwhile, and that stays
            _set_implementation(config, before)

    return undo


def _set_implementation(config: Any, name: str) -> None:
    from transformers import PretrainedConfig

    # A plain name would go to all configs inside this one too; each of them is counted by itself.
    config._attn_implementation = {"": name} if isinstance(config, PretrainedConfig) else name


def _mask(*args: Any, **options: Any) -> Tensor | None:
    """The mask that the model's own attention would get where nobody listens, else one of 4 dimensions."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    name = _original.get(id(options.get("config")), "sdpa")
    own = name == "eager" or not anyone_listens()  # eager's float mask serves our attention as well
    make: Callable[..., Tensor | None] = ALL_MASK_ATTENTION_FUNCTIONS[name] if own else sdpa_mask
    return make(*args, **options)


@cache
def _uncompiled() -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Not as a decorator: it imports torch._dynamo, a second of CPU time even for showing a report."""
    found: Callable[..., tuple[Tensor, Tensor | None]] = torch.compiler.disable(_attention)
    return found


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
    is_causal: bool | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What transformers calls in place of the model's own attention while someone, somewhere, listens."""
    listeners, forward = listeners_of(module), running()
    own = _implementation(module)
    if not listeners or (forward is not None and forward.kind == "encode"):
        if not listeners:
            unheard(module)
        plain: tuple[Tensor, Tensor | None] = own(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal, **options
        )
        return plain
    for refused in ("softcap", "s_aux", "position_bias"):
        if options.get(refused) is not None:
            raise CaptureError(
                f"{type(module).__name__} uses attention with {refused}, whose column sums are not defined here."
            )
    refuse_unseen(options.get("dropout", 0.0) if module.training else 0.0)
    query, key = query.to(value.dtype), key.to(value.dtype)  # a float32 rotary embedding promotes both
    directed = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = directed and attention_mask is None and query.shape[2] > 1
    layer = int(getattr(module, "layer_idx", 0) or 0)

    def untouched() -> Tensor:
        mask = _own_mask(module, attention_mask)
        out: Tensor = own(module, query, key, value, mask, scaling=scaling, is_causal=is_causal, **options)[0]
        return out.transpose(1, 2)

    mask, causal = aligned(attention_mask, causal, query, key)
    call = Call(layer, query, key, value, mask, causal, scaling, forward, untouched, directed)
    for one in listeners:
        one.note("interface", layer, query.shape[1], key.shape[2])
    return perform(call, [one.tap for one in listeners]).transpose(1, 2).contiguous(), None


def _own_mask(module: Any, mask: Tensor | None) -> Tensor | None:
    """The mask as the model's own attention reads it: flash-attention kernels take the real keys, [batch, key]."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask

    name = implementation_of(module.config)
    if mask is None or mask.dim() != 4 or ALL_MASK_ATTENTION_FUNCTIONS[name] is not flash_attention_mask:
        return mask
    return mask.flatten(1, 2).any(1)


def implementation_of(config: Any) -> str:
    """The name of the attention that a model has, whether or not anyone listens to it now."""
    return _original.get(id(config), config._attn_implementation or "sdpa")


def padding_row(config: Any, mask: Tensor | None) -> Tensor | None:
    """A mask [batch, key] of bidirectional attention as [batch, 1, 1, key] where the model takes it so: one row for all queries.

    transformers would write it out for every pair of query and key. Left as it is for attention that reads other masks.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    layers = getattr(config, "layer_types", None)
    sees_all = set(layers) == {"full_attention"} if layers else getattr(config, "sliding_window", None) is None
    if mask is None or not sees_all or not hasattr(config, "_attn_implementation"):  # not a model of transformers
        return mask
    if ALL_MASK_ATTENTION_FUNCTIONS[implementation_of(config)] is not sdpa_mask:
        return mask
    return mask.bool()[:, None, None]


def _implementation(module: Any) -> Callable[..., Any]:
    """The attention function that the model had before anyone listened."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = implementation_of(module.config)
    own: Any = sys.modules[type(module).__module__]
    found: Callable[..., Any] = own.eager_attention_forward if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
    return found
