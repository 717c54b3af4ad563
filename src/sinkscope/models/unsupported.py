"""Diffusion checkpoints that are known and refused: another family would load them and compute something else."""

from __future__ import annotations

from collections.abc import Callable
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


def _built_as(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda config: any(name in str(one).lower() for one in config.get("architectures") or ())


def _routes_by_block(config: dict[str, Any]) -> bool:
    """Its config.json was not seen: fields that only block routing or its edit tokens can have."""
    words = ("block_rout", "capacity", "delete_token", "insert_token")
    kind = str(config.get("model_type", "")).lower()
    return kind.startswith("llada2") and any(word in field.lower() for field in config for word in words)


UNSUPPORTED: tuple[tuple[Callable[[dict[str, Any]], bool], str], ...] = (
    (
        _built_as("stablediffcoder"),
        "Stable-DiffCoder's config.json says llama, and loaded as that it would be silently causal; where its blocks of 4 "
        "begin and how it ends is not published, so it cannot be decoded as its authors do.",
    ),
    (
        lambda config: config.get("model_type") == "bd3lm" or _built_as("bd3lm")(config),
        "BD3-LM is a DiT with adaptive layer norm on a time vector, which no class of transformers computes; "
        "Decode.bd3lm is dllm's sampler for other checkpoints.",
    ),
    (_routes_by_block, BLOCK_ROUTING),
)


@family
class Unsupported(Family):
    """Stable-DiffCoder, BD3-LM and LLaDA2.2."""

    name = "unsupported"
    tested = "refused"
    asked = 10

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return any(is_it(config) for is_it, _ in UNSUPPORTED)

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        raise CheckpointError(next(why for is_it, why in UNSUPPORTED if is_it(config)))
