"""SDAR and TraDo: Qwen3's mathematics and keys, block-causal, logits at their own position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.models.family import Family, family
from sinkscope.models.qwen import qwen_config, refuse

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.base import Model
    from sinkscope.settings import Decode


@family
class SDAR(Family):
    """JetLM/SDAR-1.7B-Chat, -4B-Chat, -8B-Chat; Gen-Verse/TraDo-4B-Instruct, -8B-Instruct, -8B-Thinking."""

    name: ClassVar[str] = "sdar"
    tested: ClassVar[str] = "golden"
    mask_token: ClassVar[str | None] = "<|MASK|>"
    end_of_turn: ClassVar[str | None] = "<|im_end|>"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return str(config.get("model_type", "")).lower() == "sdar"

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import Qwen3Config

        refuse(config, {"use_sliding_window": False, "hidden_act": "silu"}, "SDAR")
        return qwen_config(Qwen3Config, config)

    def load_tokenizer(self, folder: Path) -> PreTrainedTokenizerBase:
        from transformers import PreTrainedTokenizerFast

        if not (folder / "tokenizer.json").is_file():
            return super().load_tokenizer(folder)
        # AutoTokenizer would read config.json for it, and warn of a type that it does not know.
        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(str(folder))
        return tokenizer

    def block(self, config: dict[str, Any]) -> int | None:
        return int(config.get("block_size") or 4)

    def defaults(self, model: Model) -> Decode:
        from sinkscope.settings import Decode

        block = model.block or 4
        return Decode.sdar(
            length=128, block=block, steps=block, threshold=0.9 if "trado" in model.name.lower() else 0.85,
            stop_ids=model.eos_ids,
        )  # fmt: skip
