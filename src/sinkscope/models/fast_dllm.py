"""Fast-dLLM v2: Qwen2's mathematics and keys, block-causal, logits shifted by one as in the model it was adapted from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.models.family import Family, family
from sinkscope.models.qwen import qwen_config, refuse

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.base import Model
    from sinkscope.settings import Decode


@family
class FastDLLM(Family):
    """Efficient-Large-Model/Fast_dLLM_v2_1.5B and _7B."""

    name: ClassVar[str] = "fast_dllm2"
    shift: ClassVar[bool] = True
    tested: ClassVar[str] = "loads"
    mask_token: ClassVar[str | None] = "|<MASK>|"
    end_of_turn: ClassVar[str | None] = "<|im_end|>"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return str(config.get("model_type", "")).lower() == "fast_dllm_qwen"

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import Qwen2Config

        refuse(config, {"use_sliding_window": False, "hidden_act": "silu"}, "Fast-dLLM v2")
        return qwen_config(Qwen2Config, config)

    def block(self, config: dict[str, Any]) -> int | None:
        return int(config.get("bd_size") or 32)

    def defaults(self, model: Model) -> Decode:
        from sinkscope.settings import Decode

        block = model.block or 32
        return Decode.fast_dllm2(length=128, block=block, sub_block=min(8, block))
