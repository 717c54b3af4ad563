"""A Qwen-like config.json as transformers' own configuration: what the families adapted from Qwen share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sinkscope.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FOREIGN = {
    "model_type", "architectures", "auto_map", "attn_implementation", "rope_theta", "rope_scaling", "_name_or_path",
    "transformers_version", "torch_dtype", "dtype", "is_causal", "use_mrope",
}  # fmt: skip


def qwen_config(kind: type[PretrainedConfig], config: dict[str, Any], **changed: Any) -> PretrainedConfig:
    """Every size from config.json; what only the authors' code reads is left out, and the rotary base is put in place."""
    kept = {field: value for field, value in config.items() if field not in FOREIGN}
    rope = {"rope_type": "default", **(config.get("rope_scaling") or {}), "rope_theta": float(config["rope_theta"])}
    return kind(**kept, **{"rope_parameters": rope, **changed})


def refuse(config: dict[str, Any], expected: dict[str, Any], family: str) -> None:
    """Refuse values of config.json under which the native class would compute something else."""
    for field, value in expected.items():
        if config.get(field, value) not in (value, None):
            raise CheckpointError(
                f"Expected {field} = {value!r} in config.json, got {config[field]!r}; "
                f"this variant of {family} computes something else than transformers' class does and is not supported."
            )
