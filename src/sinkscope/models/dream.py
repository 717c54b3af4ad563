"""Dream: Qwen2's mathematics and keys, bidirectional, logits shifted by one as in the model it was adapted from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sinkscope.models.family import Family, family
from sinkscope.models.qwen import qwen_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.base import Model
    from sinkscope.settings.decode import Decode


@family
class Dream(Family):
    """Dream-org/Dream-v0-Base-7B and -Instruct-7B; apple/DiffuCoder-7B and Dream-Coder are the same class."""

    name: ClassVar[str] = "dream"
    tested: ClassVar[str] = "golden"
    shift: ClassVar[bool] = True
    mask_token: ClassVar[str | None] = "<|mask|>"
    end_of_turn: ClassVar[str | None] = "<|im_end|>"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return str(config.get("model_type", "")).lower() == "dream"

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import Qwen2Config

        return qwen_config(Qwen2Config, config)

    def load_tokenizer(self, folder: Path) -> PreTrainedTokenizerBase:
        from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

        settings = folder / "tokenizer_config.json"
        named = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class") if settings.is_file() else None
        # AutoTokenizer wants the remote class that Dream names; its vocabulary is Qwen2's.
        kind = Qwen2Tokenizer if named in (None, "DreamTokenizer", "Qwen2Tokenizer") else PreTrainedTokenizerFast
        tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(str(folder))
        return tokenizer

    def positions(self, attention_mask: Tensor | None) -> Tensor | None:
        """Counted from the first real token; padded columns stand at 1, as in Dream's own generation."""
        if attention_mask is None:
            return None
        counted = attention_mask.to(torch.int64).cumsum(-1) - 1
        return counted.masked_fill(attention_mask == 0, 1)

    def valid_vocab_size(self, model: Model) -> int | None:
        """The head has rows beyond the tokenizer's last token; choosing one could not be written as text."""
        return None if model.tokenizer is None else max(model.tokenizer.get_vocab().values()) + 1

    def defaults(self, model: Model) -> Decode:
        from sinkscope.settings.decode import Decode

        return Decode.dream(length=128, steps=128, algorithm="entropy", temperature=0.0, top_p=None, top_k=None)
