"""LLaDA-MoE: Qwen3Moe's mathematics and keys, bidirectional, logits at their own position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.models.family import Family, family

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# config.json values under which the mathematics is Qwen3Moe's. With an expert bias, the bias would enter the weights too.
QWEN_LIKE = {
    "qk_layernorm": True, "moe_router_enable_expert_bias": False, "moe_router_score_function": "softmax",
    "shared_expert_intermediate_size": 0, "num_shared_experts": 0, "router_num_group": 1, "router_topk_group": 1,
    "routed_scaling_factor": 1, "partial_rotary_factor": 1, "norm_topk_prob": False, "attention_bias": False,
    "hidden_act": "silu", "clip_qkv": None,
}  # fmt: skip


@family
class LLaDAMoE(Family):
    """inclusionAI/LLaDA-MoE-7B-A1B-Base and -Instruct; its config.json says "llada", as dense LLaDA's does."""

    name = "llada_moe"
    expects: ClassVar[dict[str, Any]] = QWEN_LIKE
    asked = 40
    tested = "loads"
    mask_token = "<|mask|>"
    end_of_turn = "<|role_end|>"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        kind = str(config.get("model_type", "")).lower().replace("_", "")
        return kind == "lladamoe" or (kind == "llada" and bool(config.get("num_experts")))

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import Qwen3MoeConfig

        layers = int(config["num_hidden_layers"])
        sparse = config.get("moe_layer_freq") or [1] * layers
        heads = int(config["num_attention_heads"])
        head: dict[str, Any] = {"head_dim": config.get("head_dim") or int(config["hidden_size"]) // heads}
        same = (
            "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps",
            "max_position_embeddings", "num_experts", "num_experts_per_tok",
        )  # fmt: skip
        return Qwen3MoeConfig(
            **{field: config[field] for field in same}, **head,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            moe_intermediate_size=config.get("expert_intermediate_size") or config["moe_intermediate_size"],
            intermediate_size=config.get("dense_intermediate_size") or config.get("intermediate_size") or 1,
            mlp_only_layers=[layer for layer, moe in enumerate(sparse) if not moe], decoder_sparse_step=1,
            norm_topk_prob=False, attention_bias=False, hidden_act="silu",
            rope_parameters={"rope_type": "default", "rope_theta": float(config["rope_theta"])},
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            eos_token_id=config.get("eos_token_id"), pad_token_id=config.get("pad_token_id"),
        )  # fmt: skip
