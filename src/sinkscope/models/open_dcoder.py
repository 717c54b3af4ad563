"""Open-dCoder: Qwen2 as it is stored, bidirectional, logits shifted by one, decoded by Dream's loop with re-masking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.models.family import Family, family
from sinkscope.models.qwen import qwen_config, refuse

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.base import Model
    from sinkscope.settings import Decode


@family
class OpenDCoder(Family):
    """fredzzp/open-dcoder-0.5B: known by Qwen2's type and a tokenizer whose mask token is `[MASK]`."""

    name: ClassVar[str] = "open_dcoder"
    asked: ClassVar[int] = 40  # before dllm's adapted models, which name another mask token
    shift: ClassVar[bool] = True
    tested: ClassVar[str] = "loads"
    mask_token: ClassVar[str | None] = "[MASK]"
    end_of_turn: ClassVar[str | None] = "<|im_end|>"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        if config.get("model_type") != "qwen2":
            return False
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if (folder / name).is_file():
                token = json.loads((folder / name).read_text(encoding="utf-8")).get("mask_token")
                if (token.get("content") if isinstance(token, dict) else token) == self.mask_token:
                    return True
        return False

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import Qwen2Config

        refuse(config, {"use_sliding_window": False, "hidden_act": "silu"}, "Open-dCoder")
        return qwen_config(Qwen2Config, config)

    def load_tokenizer(self, folder: Path) -> PreTrainedTokenizerBase:
        from transformers import PreTrainedTokenizerFast

        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(str(folder))
        return tokenizer

    def defaults(self, model: Model) -> Decode:
        from sinkscope.settings import Decode

        return Decode.dream(length=128, steps=128, algorithm="p2", temperature=0.0, top_p=None, top_k=None)
