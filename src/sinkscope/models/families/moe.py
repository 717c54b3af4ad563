"""LLaDA with experts: LLaDA-MoE is Qwen3Moe's mathematics; LLaDA2.0 and 2.1 are Glm4Moe's, and block-causal."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.errors import CheckpointError
from sinkscope.models.family import Config, Family, check_requirements

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.model import Model

BLOCK_ROUTING = (
    "LLaDA2.2 chooses experts by block routing (a capacity per block of 32 tokens) and edits with delete and insert "
    "tokens; no class of transformers computes that, and its authors' decoder was not found: use LLaDA2.0 or 2.1."
)
# Values under which LLaDA-MoE's mathematics is Qwen3Moe's; an expert bias would enter the weights too.
QWEN_MOE_LIKE = {
    "qk_layernorm": True, "moe_router_enable_expert_bias": False, "moe_router_score_function": "softmax",
    "shared_expert_intermediate_size": 0, "num_shared_experts": 0, "router_num_group": 1, "router_topk_group": 1,
    "routed_scaling_factor": 1, "partial_rotary_factor": 1, "norm_topk_prob": False, "attention_bias": False,
    "hidden_act": "silu", "clip_qkv": None,
}  # fmt: skip
# config.json values under which the mathematics is Glm4Moe's; its output projection, for one, has no bias.
GLM_LIKE = {
    "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True, "norm_head": False, "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True, "hidden_act": "silu", "use_sliding_window": False,
}  # fmt: skip


class LLaDAMoE(Family):
    """inclusionAI/LLaDA-MoE-7B-A1B-Base and -Instruct; its config.json says "llada", as dense LLaDA's does."""

    name = "llada_moe"
    model_type = "llada(_?moe)?"
    marks = ("num_experts",)
    requires: ClassVar[dict[str, Any]] = QWEN_MOE_LIKE
    priority = 40
    mask_token = "<|mask|>"
    end_of_turn = "<|role_end|>"

    def native_config(self, config: Config) -> PretrainedConfig:
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


class LLaDA2(Family):
    """inclusionAI/LLaDA2.0-mini, -flash (also -CAP) and LLaDA2.1-mini, -flash: one architecture, two decoders."""

    name = "llada2"
    model_type = "llada2.*"
    requires: ClassVar[dict[str, Any]] = GLM_LIKE
    mask_token = "<|mask|>"
    end_of_turn = "<|role_end|>"
    native_class = "Glm4MoeForCausalLM"
    block_length = ("block_size", 32)

    def native_config(self, config: Config) -> PretrainedConfig:
        rope = {
            "rope_type": "default", **(config.get("rope_scaling") or {}), "rope_theta": float(config["rope_theta"]),
            "partial_rotary_factor": float(config.get("partial_rotary_factor", 0.5)),
        }  # fmt: skip
        shared = config["moe_intermediate_size"] * config["num_shared_experts"]
        check_requirements(config, {"moe_shared_expert_intermediate_size": shared}, self.name)
        same = (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "num_experts_per_tok",
            "moe_intermediate_size", "n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace",
        )  # fmt: skip
        return _config_class()(
            **{field: config[field] for field in same}, rope_parameters=rope, use_qk_norm=True, attention_bias=False,
            n_routed_experts=config["num_experts"], n_shared_experts=config["num_shared_experts"],
            norm_topk_prob=config["num_experts_per_tok"] > 1, num_mtp_layers=0, hidden_act="silu",
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            eos_token_id=config.get("eos_token_id"), pad_token_id=config.get("pad_token_id"),
        )  # fmt: skip

    def eos_ids(self, config: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
        """config.json names no end token; the authors' generation takes the padding token for it."""
        found = super().eos_ids(config, tokenizer)
        return found or (() if config.pad_token_id is None else (int(config.pad_token_id),))

    def mask_id(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        """config.json names no mask token; without a tokenizer: three after padding, as in the published vocabulary."""
        if config.get("mask_token_id") is None and tokenizer is None and config.get("pad_token_id") is not None:
            return int(config["pad_token_id"]) + 3
        return super().mask_id(config, tokenizer)

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        """2.1 decodes by editing; nothing but its name tells it from 2.0 (and 2.2, which is refused)."""
        block = model.block or 32
        if re.search(r"llada[-_]?2[._]?2", model.name, re.IGNORECASE):
            raise CheckpointError(BLOCK_ROUTING)
        if re.search(r"llada[-_]?2[._]?1", model.name, re.IGNORECASE):
            return "llada21", {"length": 128, "block": block}
        return "llada2", {"length": 128, "block": block, "steps": block}


@cache
def _config_class() -> Callable[..., PretrainedConfig]:
    """Glm4Moe's configuration under a type of its own, for which transformers is told how LLaDA2's weights are stored."""
    from transformers import Glm4MoeConfig
    from transformers.conversion_mapping import (
        get_checkpoint_conversion_mapping,
        register_checkpoint_conversion_mapping,
    )
    from transformers.core_model_loading import Split, WeightConverter, WeightRenaming

    name = "sinkscope_llada2"
    parts = [f"self_attn.{part}_proj.weight" for part in "qkv"]
    renamed = {
        "word_embeddings": "embed_tokens",
        "attention.query_layernorm": "self_attn.q_norm",
        "attention.key_layernorm": "self_attn.k_norm",
        "attention.dense": "self_attn.o_proj",
        "mlp.gate.expert_bias": "mlp.gate.e_score_correction_bias",
    }
    register_checkpoint_conversion_mapping(
        name,
        [
            *(WeightRenaming(old, new) for old, new in renamed.items()),
            # Rows of queries, keys and values in this order, of unequal number.
            WeightConverter("attention.query_key_value.weight", parts, [Split(dim=0)]),
            *(get_checkpoint_conversion_mapping("glm4_moe") or ()),
        ],
    )
    return type("LLaDA2Config", (Glm4MoeConfig,), {"model_type": name, "__module__": __name__})
