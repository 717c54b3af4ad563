"""DiffusionGemma: recognised, so that it is refused with a reason. It has no mask token and a generation of its own.

`sk.trace` takes transformers' own module in its place (`sinkscope.tracing.native`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.errors import CheckpointError
from sinkscope.models.family import Family, family

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@family
class DiffusionGemma(Family):
    """google/diffusiongemma-26B-A4B-it."""

    name: ClassVar[str] = "diffusion_gemma"
    tested: ClassVar[str] = "traced"

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        return str(config.get("model_type", "")).lower().startswith("diffusion_gemma")

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        raise CheckpointError(
            "DiffusionGemma denoises random tokens with transformers' own generate, which sinkscope's decoders do not "
            "replace; load it with transformers (DiffusionGemmaForBlockDiffusion.from_pretrained) and hand that module to "
            "sk.trace(module, ids) or sk.observe(module)."
        )
