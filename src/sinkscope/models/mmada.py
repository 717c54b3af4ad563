"""MMaDA: LLaDA's architecture with image codes appended to the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.models.family import family
from sinkscope.models.llada import LLaDA

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.base import Model
    from sinkscope.settings.decode import Decode


@family
class MMaDA(LLaDA):
    """Gen-Verse/MMaDA-8B-Base and -MixCoT; the chat template has one newline after a header where LLaDA has two."""

    name: ClassVar[str] = "mmada"
    tested: ClassVar[str] = "golden"
    asked: ClassVar[int] = 40  # before LLaDA, whose type it may name

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        named = str(config.get("model_type", "")).lower() == "mmada"
        built = any("mmada" in str(architecture).lower() for architecture in config.get("architectures") or ())
        return named or built

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        # The head was resized after the LLaDA fields were written: new_vocab_size is what the weights have.
        rows = config.get("new_vocab_size") or config.get("embedding_size") or config["vocab_size"]
        return super().native_config({**config, "embedding_size": rows})

    def defaults(self, model: Model) -> Decode:
        from sinkscope.settings.decode import Decode

        return Decode.mmada(length=128, block=32, steps=128)
