"""iLLaDA: Llama's mathematics and keys with tied embeddings, bidirectional, decoded as LLaDA is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.errors import DecodeError
from sinkscope.models.family import Family, family
from sinkscope.models.qwen import qwen_config, refuse

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.base import Model
    from sinkscope.settings import Decode

MASK = 5  # <[MASK]>; config.json does not name it
LLADA_ENDS = (126081, 126348)  # what LLaDA's sampler has in its code; unrelated tokens here
LLAMA_LIKE = {"layer_norm_eps": None, "rope_scaling": None, "hidden_act": "silu"}


@family
class ILLaDA(Family):
    """GSAI-ML/iLLaDA-8B-Base and -Instruct; the file may hold the output head beside the embedding it is tied to."""

    name: ClassVar[str] = "illada"
    tested: ClassVar[str] = "golden"
    mask_token: ClassVar[str | None] = "<[MASK]>"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return str(config.get("model_type", "")).lower() == "illada"

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        from transformers import LlamaConfig

        refuse(config, LLAMA_LIKE, "iLLaDA")
        return qwen_config(LlamaConfig, config)

    def mask_id(self, config: dict[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        return super().mask_id({"mask_token_id": MASK, **config}, tokenizer)

    def check_settings(self, settings: Decode) -> None:
        super().check_settings(settings)
        named = [one for one in LLADA_ENDS if one in (settings.eos_id, settings.eot_id)]
        if named and (settings.forbid_eos or settings.late_eos):
            raise DecodeError(
                f"{named[0]} is LLaDA's end token and an unrelated one in iLLaDA's vocabulary; leave eos_id and eot_id out, "
                "or give iLLaDA's."
            )

    def defaults(self, model: Model) -> Decode:
        from sinkscope.settings import Decode

        return Decode.llada(length=128, block=32, steps=128)
