"""GIDD v2: a transformer of 3 or 10 billion parameters that was trained with a sink of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from sinkscope.models.family import Config, Family

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.model import Model

SAME = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "attention_bias", "mlp_bias", "attn_soft_cap",
    "head_scaling", "weight_scaling", "noise_type", "min_log_snr", "max_log_snr",
)  # fmt: skip
MASK = 3


class GIDDv2(Family):
    """dvruette/gidd-mask-3b, gidd-unif-3b and gidd-unif-10b."""

    name = "gidd_v2"
    model_type = "gidd"
    requires: ClassVar[dict[str, Any]] = {"use_qk_norm": True, "rope_scaling": None, "tie_word_embeddings": False}
    sampler = "gidd_v2"
    samplers = ("gidd_v2",)
    empty_prompt = True

    def matches(self, config: Config, folder: Path) -> bool:
        return super().matches(config, folder) and "attn_soft_cap" in config

    def own_class(self) -> Any:
        from sinkscope.models.gidd_v2 import GIDDv2ForDiffusion

        return GIDDv2ForDiffusion

    def has_built_in_key(self, config: Any) -> bool:
        return bool(config.attention_bias)

    def native_config(self, config: Config) -> PretrainedConfig:
        from transformers import PretrainedConfig

        fields = {name: config[name] for name in SAME}
        special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
        named = {name: config[name] for name in special if config.get(name) is not None}
        return PretrainedConfig(
            **fields, **special | named, mask_token_id=MASK, num_key_value_heads=config["num_attention_heads"],
            branch_scale=config["resid_scale"] / config["num_hidden_layers"], head_bias=False, tie_word_embeddings=False,
        )  # fmt: skip

    def adapt(self, module: Any, config: Config) -> None:
        from sinkscope.models.gidd_v2 import CAPPED

        module.config._attn_implementation = CAPPED

    def mask_id(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        return int(config.get("mask_token_id") or MASK)

    def cap(self, module: Any, logits: Tensor) -> Tensor:
        return logits * module.config.head_scaling

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        length = min(128, int(model.config.max_position_embeddings) // 2)
        return self.sampler, {"length": length, "block": length, "steps": 2 * length}
