"""Rotary embedding applied in float32 inside a half-precision model, as LLaDA's own code does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SDPA_AFTER_FLOAT32_ROPE = "sinkscope_sdpa_after_float32_rope"


class Float32Rotary(nn.Module):
    """Wraps a transformers rotary embedding so that cos and sin stay float32; q and k are then promoted to it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor, position_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        cos, sin = self.inner(hidden.to(torch.float32), position_ids)
        return cos, sin


def sdpa_in_value_dtype(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' sdpa after casting the rotated queries and keys back to the model's dtype."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    out: tuple[Tensor, None] = sdpa_attention_forward(
        module, query.to(value.dtype), key.to(value.dtype), value, attention_mask, **options
    )
    return out


class KeysInValueDtype:
    """A cache that stores rotated keys in the dtype of the values, as it would without the float32 rotation."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def update(self, key: Tensor, value: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        stored: tuple[Tensor, Tensor] = self.cache.update(key.to(value.dtype), value, *args, **options)
        return stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)


def _narrow_cache(part: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    cache = options.get("past_key_values")
    return args, options if cache is None else {**options, "past_key_values": KeysInValueDtype(cache)}


def rotate_in_float32(module: Any) -> None:
    """Make a half-precision Llama module rotate in float32 (one constant of the model, not a passing patch)."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(SDPA_AFTER_FLOAT32_ROPE, sdpa_in_value_dtype)
    AttentionMaskInterface.register(SDPA_AFTER_FLOAT32_ROPE, sdpa_mask)
    module.model.rotary_emb = Float32Rotary(module.model.rotary_emb)
    for layer in module.model.layers:
        layer.self_attn.register_forward_pre_hook(_narrow_cache, with_kwargs=True)
    module.set_attn_implementation(SDPA_AFTER_FLOAT32_ROPE)
