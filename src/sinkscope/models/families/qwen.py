"""Families stored under the keys of Qwen or Llama: what differs is said, the rest is the native class's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from sinkscope.errors import DecodeError
from sinkscope.models.checkpoint import stored_mask_tokens
from sinkscope.models.family import Config, Family, qwen_config, reordered_mask

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.model import Model

LLADA_ENDS = (126081, 126348)  # what LLaDA's sampler has in its code; unrelated tokens of iLLaDA


class Dream(Family):
    """Dream-org/Dream-v0-Base-7B and -Instruct-7B; apple/DiffuCoder-7B and Dream-Coder are the same class."""

    name = "dream"
    model_type = "dream"
    native = "Qwen2Config"
    sampler = "dream"
    default_settings: ClassVar[dict[str, Any]] = {
        "steps": 128, "algorithm": "entropy", "temperature": 0.0, "top_p": None, "top_k": None,
    }  # fmt: skip
    shift = True
    padding_position = 1  # as in Dream's own generation
    mask_token = "<|mask|>"
    end_of_turn = "<|im_end|>"

    def load_tokenizer(self, folder: Path) -> PreTrainedTokenizerBase:
        from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

        settings = folder / "tokenizer_config.json"
        named = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class") if settings.is_file() else None
        # AutoTokenizer wants the remote class that Dream names; its vocabulary is Qwen2's.
        kind = Qwen2Tokenizer if named in (None, "DreamTokenizer", "Qwen2Tokenizer") else PreTrainedTokenizerFast
        tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(str(folder))
        return tokenizer

    def valid_vocab_size(self, model: Model) -> int | None:
        """The head has rows beyond the tokenizer's last token; choosing one could not be written as text."""
        return None if model.tokenizer is None else max(model.tokenizer.get_vocab().values()) + 1


class Qwen(Family):
    """Of Qwen's mathematics, and with its token at the end of a turn."""

    requires: ClassVar[dict[str, Any]] = {"use_sliding_window": False, "hidden_act": "silu"}
    end_of_turn = "<|im_end|>"


class OpenDCoder(Qwen):
    """fredzzp/open-dcoder-0.5B: known by Qwen2's type and a tokenizer whose mask token is `[MASK]`."""

    name = "open_dcoder"
    priority = 40  # before dllm's adapted models, which name another mask token
    model_type = "qwen2"
    native = "Qwen2Config"
    sampler = "dream"
    default_settings: ClassVar[dict[str, Any]] = {**Dream.default_settings, "algorithm": "p2"}
    shift = True
    plain_tokenizer = True
    mask_token = "[MASK]"

    def matches(self, config: Config, folder: Path) -> bool:
        return super().matches(config, folder) and self.mask_token in stored_mask_tokens(folder)


class RND1(Qwen):
    """radicalnumerics/RND1-Base-0910."""

    name = "rnd1"
    model_type = "rnd1"
    native = "Qwen3MoeConfig"
    requires: ClassVar[dict[str, Any]] = {**Qwen.requires, "rope_scaling": False}
    native_class = "Qwen3MoeForCausalLM"
    shift = True
    padding_position = 0

    def native_config(self, config: Config) -> PretrainedConfig:
        return super().native_config({**config, "sliding_window": None})

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        """The authors' schedule and end column; they draw at temperature 0.1, and here the likeliest token is taken."""
        return "rnd1", {"length": 128, "steps": 128, "eos_id": model.eos_id}


class FastDLLM(Qwen):
    """Efficient-Large-Model/Fast_dLLM_v2_1.5B and _7B: block-causal."""

    name = "fast_dllm2"
    model_type = "fast_dllm_qwen"
    native = "Qwen2Config"
    shift = True
    block_length = ("bd_size", 32)
    mask_token = "|<MASK>|"

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        block = model.block or 32
        return "fast_dllm2", {"length": 128, "block": block, "sub_block": min(8, block)}


class SDAR(Qwen):
    """JetLM/SDAR-1.7B-Chat, -4B-Chat, -8B-Chat; Gen-Verse/TraDo-4B-Instruct, -8B-Instruct, -8B-Thinking: block-causal."""

    name = "sdar"
    model_type = "sdar"
    native = "Qwen3Config"
    block_length = ("block_size", 4)
    plain_tokenizer = True
    mask_token = "<|MASK|>"

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        block, threshold = model.block or 4, 0.9 if "trado" in model.name.lower() else 0.85
        settings = {"length": 128, "block": block, "steps": block, "threshold": threshold, "stop_ids": model.eos_ids}
        return "sdar", settings


class WeDLM(Qwen):
    """tencent/WeDLM-8B-Base, -Instruct (Qwen3's keys) and -7B (Qwen2's, qk_norm false): known tokens first, then masks, causally.

    The text keeps its order here, and a mask says what each position sees: so what a key receives stands at its own place.
    """

    name = "wedlm"
    model_type = "wedlm"
    samplers = ("wedlm",)
    sampler = "wedlm"
    default_settings: ClassVar[dict[str, Any]] = {"block": 16, "threshold": 0.9}
    padding_position = 0

    def native_config(self, config: Config) -> PretrainedConfig:
        return qwen_config("Qwen3Config" if config.get("qk_norm", True) else "Qwen2Config", config)

    def visible(self, model: Model, ids: Tensor, real: Tensor | None) -> Tensor | None:
        return reordered_mask(ids.ne(model.require_mask()), real)


class ILLaDA(Family):
    """GSAI-ML/iLLaDA-8B-Base and -Instruct; the file may hold the output head beside the embedding it is tied to."""

    name = "illada"
    model_type = "illada"
    native = "LlamaConfig"
    requires: ClassVar[dict[str, Any]] = {"layer_norm_eps": None, "rope_scaling": None, "hidden_act": "silu"}
    mask_token = "<[MASK]>"

    def mask_id(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        return super().mask_id({"mask_token_id": 5, **config}, tokenizer)  # config.json does not name it

    def check_settings(self, settings: Any) -> None:
        super().check_settings(settings)
        named = [one for one in LLADA_ENDS if one in (settings.eos_id, settings.eot_id)]
        if named and (settings.forbid_eos or settings.late_eos):
            raise DecodeError(
                f"{named[0]} is LLaDA's end token and an unrelated one in iLLaDA's vocabulary; leave eos_id and eot_id out, "
                "or give iLLaDA's."
            )
