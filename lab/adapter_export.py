"""A trained adapter in PEFT's format, with our own notes beside it: base, family, mask token and decode settings."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lab.adaptation import Adaptation
from lab.errors import TrainingError
from lab.lora import LINEARS, NORMS
from sinkscope.models.adapters import CONFIG, NOTES, PREFIX, WEIGHTS, Adapter

DTYPE = torch.bfloat16
ROW, ROWS = "embed_tokens.row", "embed_tokens.token_adapter.trainable_tokens_delta"


def peft_name(name: str) -> str:
    """PEFT's name of a parameter of the wrapped module."""
    if name.endswith(ROW):
        return PREFIX + name.removesuffix(ROW) + ROWS
    return PREFIX + re.sub(r"\.(lora_[AB])$", r".\1.weight", name)


def trained_weights(adapter: Adapter, names: Iterable[str]) -> dict[str, Tensor]:
    """What an exported adapter holds of these parameters of the wrapped module, under their own names."""
    stored = {name: adapter.tensors.get(peft_name(name).removeprefix(PREFIX)) for name in names}
    return {
        name: (tensor[0] if name.endswith(ROW) else tensor).float()
        for name, tensor in stored.items()
        if tensor is not None
    }


def export_adapter(
    recipe: Adaptation, weights: dict[str, Tensor], folder: Path, base: str, mask_id: int | None, template: str
) -> Path:
    """Write the adapter's folder whole, in place of an older one."""
    stored = {}
    for name, tensor in weights.items():
        rounded = tensor.detach().to(DTYPE)
        stored[peft_name(name)] = (rounded[None] if name.endswith(ROW) else rounded).contiguous()
    temporary = folder.with_name(folder.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        save_file(stored, temporary / WEIGHTS, metadata={"format": "pt"})
        (temporary / WEIGHTS).chmod(0o644)  # safetensors writes for the owner alone
        _write(temporary / CONFIG, peft_config(recipe, mask_id))
        _write(temporary / NOTES, notes(recipe, base, mask_id))
        (temporary / "chat_template.jinja").write_text(template, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"the adapter could not be written to {folder} ({error}); free some space.") from error
    return folder


def peft_config(recipe: Adaptation, mask_id: int | None) -> dict[str, Any]:
    """adapter_config.json."""
    return {
        "base_model_name_or_path": recipe.base,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": int(recipe.alpha) if recipe.alpha.is_integer() else recipe.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": list(NORMS),
        "peft_type": "LORA",
        "r": recipe.rank,
        "target_modules": sorted(LINEARS),
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": None if mask_id is None else {"embed_tokens": [mask_id]},
        "use_dora": False,
        "use_rslora": False,
    }


def notes(recipe: Adaptation, base: str, mask_id: int | None) -> dict[str, Any]:
    """sinkscope.json: what PEFT's settings have no place for."""
    family = recipe.family if recipe.sees == "own" else f"{recipe.sees}-{recipe.family}"  # as in lab/directions.py
    found: dict[str, Any] = {"base_fingerprint": base, "family": family, "sinkscope_decode": recipe.decode}
    return found if mask_id is None else {**found, "mask_token_id": mask_id}


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
