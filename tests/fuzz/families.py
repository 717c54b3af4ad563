"""A small checkpoint of every family, and an adapter, for fuzzers to change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from golden_sets import HERE, NEWEST
from made_models import (
    make_causal,
    make_dream,
    make_fast_dllm,
    make_llada,
    make_llada_moe,
    make_open_dcoder,
    save_tokenizer,
)


def _golden(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        return Path(shutil.copytree(HERE / name, folder, ignore=shutil.ignore_patterns("golden.*")))

    return make


MAKERS: dict[str, Callable[[Path], Path]] = {
    "llada": make_llada, "dream": make_dream, "causal": make_causal, "llada_moe": make_llada_moe,
    "fast_dllm": make_fast_dllm, "open_dcoder": make_open_dcoder, "mmada": _golden("mmada"),
    "a2d": _golden("newer/a2d"), "llada2": _golden("newer/llada2"), "sdar": _golden("newer/sdar"),
    **{name: _golden(f"newest/{name}") for name in NEWEST},
}  # fmt: skip


def make_adapter(folder: Path) -> Path:
    """A LoRA adapter of two layers' queries, in PEFT's format, beside its base."""
    base = make_causal(save_tokenizer(folder / "base", eos_token="</s>"))
    own = folder / "adapter"
    own.mkdir()
    draw = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(4, 32, generator=draw) * 0.1
        tensors[f"{name}.lora_B.weight"] = torch.randn(32, 4, generator=draw) * 0.1
    save_file(tensors, own / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "base_model_name_or_path": str(base), "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"],
        "bias": "none", "use_dora": False, "use_rslora": False, "fan_in_fan_out": False, "init_lora_weights": True,
        "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": None, "layers_to_transform": None,
        "trainable_token_indices": None, "lora_dropout": 0.0, "task_type": "CAUSAL_LM", "inference_mode": True,
        "layer_replication": None, "exclude_modules": None, "revision": None, "ensure_weight_tying": False,
    }  # fmt: skip
    (own / "adapter_config.json").write_text(json.dumps(config))
    notes = {"family": "llama", "base_fingerprint": None, "sinkscope_decode": {"length": 8}, "mask_token_id": 3}
    (own / "sinkscope.json").write_text(json.dumps(notes))
    return own
