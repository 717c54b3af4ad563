"""RND1: Qwen3Moe's mathematics and keys, bidirectional, logits shifted by one as in the model it was adapted from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from sinkscope.models.blocks import counted
from sinkscope.models.family import Family, family
from sinkscope.models.qwen import qwen_config, refuse

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.base import Model
    from sinkscope.settings import Decode


@family
class RND1(Family):
    """radicalnumerics/RND1-Base-0910."""

    name: ClassVar[str] = "rnd1"
    tested: ClassVar[str] = "golden"
    shift: ClassVar[bool] = True
    end_of_turn: ClassVar[str | None] = "<|im_end|>"
    native_class: ClassVar[str | None] = "Qwen3MoeForCausalLM"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return str(config.get("model_type", "")).lower() == "rnd1"

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import Qwen3MoeConfig

        refuse(config, {"use_sliding_window": False, "hidden_act": "silu", "rope_scaling": False}, "RND1")
        return qwen_config(Qwen3MoeConfig, {**config, "sliding_window": None})

    def positions(self, attention_mask: Tensor | None) -> Tensor | None:
        return None if attention_mask is None else counted(attention_mask.bool())

    def defaults(self, model: Model) -> Decode:
        """The authors' schedule and end column; they draw at temperature 0.1, and here the likeliest token is taken."""
        from sinkscope.settings import Decode

        return Decode.rnd1(length=128, steps=128, eos_id=model.eos_id)
