"""Autoregressive checkpoints that transformers knows by itself: Llama, Qwen2, Qwen3, SmolLM and others, GGUF too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sinkscope.models.family import Family, family

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.base import Model
    from sinkscope.settings.decode import Decode


@family
class Llama(Family):
    """Any causal language model with a native transformers class; the last family to be asked."""

    name: ClassVar[str] = "llama"
    tested: ClassVar[str] = "loads"
    asked: ClassVar[int] = 100
    shift: ClassVar[bool] = True
    causal: ClassVar[bool] = True
    end_of_turn: ClassVar[str | None] = "<|eot_id|>"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        return config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import AutoConfig

        kept = {field: value for field, value in config.items() if field not in ("model_type", "auto_map")}
        made: PretrainedConfig = AutoConfig.for_model(config["model_type"], **kept)
        return made

    def positions(self, attention_mask: Tensor | None) -> Tensor | None:
        if attention_mask is None:
            return None
        counted = attention_mask.to(torch.int64).cumsum(-1) - 1
        return counted.masked_fill(attention_mask == 0, 1)

    def defaults(self, model: Model) -> Decode:
        from sinkscope.settings.decode import Decode

        return Decode.autoregressive(length=128)
