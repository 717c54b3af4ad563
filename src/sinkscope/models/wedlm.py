"""WeDLM: Qwen's mathematics and keys, causal over known tokens first and masks last; logits at their own position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from sinkscope.models.blocks import counted, reordered_mask
from sinkscope.models.family import Family, family
from sinkscope.models.qwen import qwen_config, refuse

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.base import Model
    from sinkscope.settings import Decode


@family
class WeDLM(Family):
    """tencent/WeDLM-8B-Base, -Instruct (Qwen3's keys) and -7B (Qwen2's, qk_norm false).

    The text keeps its order here, and a mask says what each position sees: so what a key receives stands at its own place.
    """

    name: ClassVar[str] = "wedlm"
    decoders: ClassVar[tuple[str, ...]] = ("wedlm",)
    constructor: ClassVar[str] = "wedlm"
    tested: ClassVar[str] = "golden"
    end_of_turn: ClassVar[str | None] = "<|im_end|>"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return str(config.get("model_type", "")).lower() == "wedlm"

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import Qwen2Config, Qwen3Config

        refuse(config, {"use_sliding_window": False, "hidden_act": "silu"}, "WeDLM")
        return qwen_config(Qwen3Config if config.get("qk_norm", True) else Qwen2Config, config)

    def positions(self, attention_mask: Tensor | None) -> Tensor | None:
        return None if attention_mask is None else counted(attention_mask.bool())

    def visible(self, model: Model, ids: Tensor, real: Tensor | None) -> Tensor | None:
        return reordered_mask(ids.ne(model.require_mask()), real)

    def defaults(self, model: Model) -> Decode:
        from sinkscope.settings import Decode

        return Decode.wedlm(length=128, block=16, threshold=0.9)
