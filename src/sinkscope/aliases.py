"""Twelve setting names of transformers and of the models' authors, and ours for each; docs/reference/words.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkscope.errors import SinkscopeError

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
NAMES = {
    # of a decoder
    "max_new_tokens": "length",
    "gen_length": "length",
    "block_length": "block",
    "remasking": "confidence",
    "cfg_scale": "guidance",
    "alg": "algorithm",
    "alg_temp": "algorithm_temperature",
    "eps": "epsilon",
    "logits_eos_inf": "forbid_eos",
    "confidence_eos_eot_inf": "late_eos",
    # of `load`
    "torch_dtype": "dtype",
    "device_map": "device",
}
VALUES = {"remasking": {"low_confidence": "probability"}}


def rename_settings(settings: Mapping[str, Any], error: type[SinkscopeError]) -> dict[str, Any]:
    """The same settings under our names alone."""
    renamed: dict[str, Any] = {}
    for name, value in settings.items():
        ours = NAMES.get(name, name)
        if ours in renamed or (ours != name and ours in settings):
            raise error(f"{name} and {ours} are the same setting; give one of them.")
        values = VALUES.get(name, {})
        renamed[ours] = values.get(value, value) if isinstance(value, str) else value
    return renamed
