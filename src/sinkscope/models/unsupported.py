"""Diffusion checkpoints that are known and refused: another family would load them and compute something else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import CheckpointError
from sinkscope.models.family import Family, family

if TYPE_CHECKING:
    from transformers import PretrainedConfig

BLOCK_ROUTING = (
    "LLaDA2.2 chooses experts by block routing (a capacity per block of 32 tokens) and edits with delete and insert "
    "tokens; no class of transformers computes that, and its authors' decoder was not found: use LLaDA2.0 or 2.1."
)
# By a word in the names of its architectures, its model type, or (LLaDA2.2's config.json was not seen) its fields.
UNSUPPORTED = {
    "stablediffcoder": "Stable-DiffCoder's config.json says llama, and loaded as that it would be silently causal; where "
    "its blocks of 4 begin and how it ends is not published, so it cannot be decoded as its authors do.",
    "bd3lm": "BD3-LM is a DiT with adaptive layer norm on a time vector, which no class of transformers computes; "
    "Decode.bd3lm is dllm's sampler for other checkpoints.",
    "block_rout": BLOCK_ROUTING,
}


@family
class Unsupported(Family):
    """Stable-DiffCoder, BD3-LM and LLaDA2.2."""

    name = "unsupported"
    tested = "refused"
    asked = 10

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return _why(config) is not None

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        raise CheckpointError(_why(config) or "")


def _why(config: dict[str, Any]) -> str | None:
    named = " ".join(map(str, (config.get("model_type"), config.get("architectures"), *config))).lower()
    return next((why for word, why in UNSUPPORTED.items() if word in named), None)
