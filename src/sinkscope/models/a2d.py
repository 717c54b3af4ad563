"""Autoregressive checkpoints turned into diffusion models in their native keys (the Tiny-A2D kind, e.g. Qwen3-0.6B)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.models.family import Family, family

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.base import Model
    from sinkscope.settings.decode import Decode

NATIVE = ("qwen3", "qwen2", "llama")


@family
class AdaptedToDiffusion(Family):
    """Known by an `a2d-…` model type, or by a native causal type whose checkpoint names a mask token."""

    name: ClassVar[str] = "a2d"
    tested: ClassVar[str] = "golden"
    mask_token: ClassVar[str | None] = "<|mask|>"
    end_of_turn: ClassVar[str | None] = "<|im_end|>"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        kind = str(config.get("model_type", "")).lower()
        if "a2d-" in kind or any(
            str(name).startswith(("A2D", "TinyA2D")) for name in config.get("architectures") or ()
        ):
            return native_type(kind) in NATIVE
        return kind in NATIVE and (config.get("mask_token_id") is not None or _tokenizer_has_mask(folder))

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import AutoConfig

        kept = {field: value for field, value in config.items() if field not in ("model_type", "auto_map", "is_causal")}
        made: PretrainedConfig = AutoConfig.for_model(native_type(str(config["model_type"])), **kept)
        return made

    def pad_id(self, config: Any, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        """Qwen's config.json names no padding; its begin token is the end-of-document that its tokenizer pads with."""
        found = super().pad_id(config, tokenizer)
        return config.bos_token_id if found is None and tokenizer is None else found

    def load_tokenizer(self, folder: Path) -> PreTrainedTokenizerBase:
        from transformers import PreTrainedTokenizerFast

        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(str(folder))
        return tokenizer

    def defaults(self, model: Model) -> Decode:
        from sinkscope.settings.decode import Decode

        # The files of the two are alike: only the name tells a block-causal checkpoint.
        make = Decode.bd3lm if "bd3lm" in model.name.lower() else Decode.mdlm
        return make(length=128, block=32, steps=128)


def native_type(model_type: str) -> str:
    return re.sub(r"^(tiny-)?a2d-", "", model_type.lower())


def _tokenizer_has_mask(folder: Path) -> bool:
    """A causal checkpoint has no use for a mask token: naming one marks a diffusion model."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / name
        if path.is_file() and json.loads(path.read_text(encoding="utf-8")).get("mask_token"):
            return True
    return False
