"""LLaDA and MMaDA: Llama's mathematics under OLMo's names, bidirectional, logits at their own position."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from sinkscope.models.family import Config, Family

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.model import Model

SDPA_AFTER_FLOAT32_ROPE = "sinkscope_sdpa_after_float32_rope"
BLOCK = r"^model\.transformer\.blocks\.(\d+)\."
PARTS = {
    "attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm", "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj", "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj", "ff_out": "mlp.down_proj",
}  # fmt: skip

# config.json values under which the mathematics is Llama's; anything else would load and compute something different.
LLAMA_LIKE = {
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "rope": True,
    "scale_logits": False,
}


class LLaDA(Family):
    """GSAI-ML/LLaDA-8B-Base, -Instruct and LLaDA-1.5."""

    name = "llada"
    model_type = "llada"
    requires: ClassVar[dict[str, Any]] = LLAMA_LIKE
    float32_rotary = True
    mask_token = "<|mdm_mask|>"
    end_of_turn = "<|eot_id|>"
    key_mapping: ClassVar[dict[str, str]] = {
        r"^model\.transformer\.wte\.": "model.embed_tokens.",
        r"^model\.transformer\.ln_f\.": "model.norm.",
        r"^model\.transformer\.ff_out\.": "lm_head.",
        # One pattern each: transformers fills in a single group only.
        **{rf"{BLOCK}{own}\.": rf"model.layers.\1.{native}." for own, native in PARTS.items()},
    }

    def matches(self, config: Config, folder: Path) -> bool:
        # LLaDA-MoE names the same type; its experts tell it apart.
        return super().matches(config, folder) and not config.get("num_experts")

    def native_config(self, config: Config) -> PretrainedConfig:
        from transformers import LlamaConfig

        heads = int(config["n_heads"])
        kv_heads = config.get("n_kv_heads") or (1 if config.get("multi_query_attention") else heads)
        return LlamaConfig(
            vocab_size=config.get("embedding_size") or config["vocab_size"],
            hidden_size=config["d_model"],
            intermediate_size=config.get("mlp_hidden_size") or config["d_model"] * config["mlp_ratio"],
            num_hidden_layers=config["n_layers"],
            num_attention_heads=heads,
            num_key_value_heads=int(kv_heads),
            max_position_embeddings=config["max_sequence_length"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_parameters={"rope_type": "default", "rope_theta": float(config["rope_theta"])},
            tie_word_embeddings=bool(config.get("weight_tying", False)),
            attention_bias=False,
            mlp_bias=False,
            hidden_act="silu",
            bos_token_id=config.get("bos_token_id"),
            eos_token_id=config.get("eos_token_id"),
            pad_token_id=config.get("pad_token_id"),
        )

    def adapt(self, module: nn.Module, config: Config) -> None:
        if config.get("rope_full_precision", True) and next(module.parameters()).dtype != torch.float32:
            rotate_in_float32(module)

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        """1.5 holds end tokens back, as its authors do; nothing but its name tells it."""
        if re.search(r"llada[-_]?1[._]5", model.name, re.IGNORECASE) and model.eot_id is not None:
            return "llada", {"length": 256, "block": 16, "steps": 256, "late_eos": True}
        return super().defaults(model)


class MMaDA(LLaDA):
    """Gen-Verse/MMaDA-8B-Base and -MixCoT: image codes are appended to LLaDA's vocabulary.

    The chat template has one newline after a header where LLaDA has two.
    """

    name = "mmada"
    priority = 40  # before LLaDA, whose type it may name
    model_type = "mmada"
    sampler = "mmada"

    def matches(self, config: Config, folder: Path) -> bool:
        built = any("mmada" in str(architecture).lower() for architecture in config.get("architectures") or ())
        return built or Family.matches(self, config, folder)

    def native_config(self, config: Config) -> PretrainedConfig:
        # The head was resized after the LLaDA fields were written: new_vocab_size is what the weights have.
        rows = config.get("new_vocab_size") or config.get("embedding_size") or config["vocab_size"]
        return super().native_config({**config, "embedding_size": rows})

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        return Family.defaults(self, model)


# ---- the rotary embedding applied in float32 inside a half-precision model, as LLaDA's own code does


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
