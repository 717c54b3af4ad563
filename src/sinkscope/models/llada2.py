"""LLaDA2.0 and 2.1: Glm4Moe's mathematics under names of their own, block-causal, logits at their own position."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.errors import CheckpointError
from sinkscope.models.family import BLOCK_ROUTING, Family, family, refuse
from sinkscope.settings.decode import Decode

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.base import Model

# config.json values under which the mathematics is Glm4Moe's; its output projection, for one, has no bias.
GLM_LIKE = {
    "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True, "norm_head": False, "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True, "hidden_act": "silu", "use_sliding_window": False,
}  # fmt: skip


@family
class LLaDA2(Family):
    """inclusionAI/LLaDA2.0-mini, -flash (also -CAP) and LLaDA2.1-mini, -flash: one architecture, two decoders."""

    name = "llada2"
    expects: ClassVar[dict[str, Any]] = GLM_LIKE
    mask_token = "<|mask|>"
    end_of_turn = "<|role_end|>"
    native_class = "Glm4MoeForCausalLM"
    block_length = ("block_size", 32)

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return str(config.get("model_type", "")).lower().startswith("llada2")

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        rope = {
            "rope_type": "default", **(config.get("rope_scaling") or {}), "rope_theta": float(config["rope_theta"]),
            "partial_rotary_factor": float(config.get("partial_rotary_factor", 0.5)),
        }  # fmt: skip
        shared = config["moe_intermediate_size"] * config["num_shared_experts"]
        refuse(config, {"moe_shared_expert_intermediate_size": shared}, self.name)
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

    def mask_id(self, config: dict[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        """config.json names no mask token; without a tokenizer: three after padding, as in the published vocabulary."""
        if config.get("mask_token_id") is None and tokenizer is None and config.get("pad_token_id") is not None:
            return int(config["pad_token_id"]) + 3
        return super().mask_id(config, tokenizer)

    def defaults(self, model: Model) -> Decode:
        """2.1 decodes by editing; nothing but its name tells it from 2.0 (and 2.2, which is refused)."""
        block = model.block or 32
        if re.search(r"llada[-_]?2[._]?2", model.name, re.IGNORECASE):
            raise CheckpointError(BLOCK_ROUTING)
        if re.search(r"llada[-_]?2[._]?1", model.name, re.IGNORECASE):
            return Decode.llada21(length=128, block=block)
        return Decode.llada2(length=128, block=block, steps=block)


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
