"""Checkpoints of a type that transformers knows by itself: causal ones, GGUF too, and those that were turned into diffusion."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.models.checkpoint import stored_mask_tokens
from sinkscope.models.family import Config, Family, config_of_type

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.model import Model

ADAPTED = ("qwen3", "qwen2", "llama")


class Llama(Family):
    """Any causal language model with a native transformers class; the last family to be asked."""

    name = "llama"
    priority = 100
    sampler = "autoregressive"
    default_settings: ClassVar[dict[str, Any]] = {}
    shift = True
    causal = True
    padding_position = 1
    end_of_turn = "<|eot_id|>"

    def matches(self, config: Config, folder: Path) -> bool:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        return config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    def native_config(self, config: Config) -> PretrainedConfig:
        return config_of_type(config["model_type"], config)


class AdaptedToDiffusion(Family):
    """The Tiny-A2D kind: an `a2d-…` model type, or a native causal type whose checkpoint names a mask token."""

    name = "a2d"
    plain_tokenizer = True
    mask_token = "<|mask|>"
    end_of_turn = "<|im_end|>"

    def matches(self, config: Config, folder: Path) -> bool:
        kind = str(config.get("model_type", "")).lower()
        built = any(str(name).startswith(("A2D", "TinyA2D")) for name in config.get("architectures") or ())
        if built or "a2d-" in kind:
            return _native_type(kind) in ADAPTED
        return kind in ADAPTED and (config.get("mask_token_id") is not None or bool(stored_mask_tokens(folder)))

    def native_config(self, config: Config) -> PretrainedConfig:
        return config_of_type(_native_type(str(config["model_type"])), config)

    def pad_id(self, config: Any, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        """Qwen's config.json names no padding; its begin token is the end-of-document that its tokenizer pads with."""
        found = super().pad_id(config, tokenizer)
        return config.bos_token_id if found is None and tokenizer is None else found

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        # The files of the two are alike: only the name tells a block-causal checkpoint.
        sampler = "bd3lm" if "bd3lm" in model.name.lower() else "mdlm"
        return sampler, {"length": 128, "block": 32, "steps": 128}


def _native_type(model_type: str) -> str:
    return re.sub(r"^(tiny-)?a2d-", "", model_type.lower())
