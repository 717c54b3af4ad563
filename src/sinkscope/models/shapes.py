"""Sizes of the paper's four models, by their Hub ids: `plan` needs no Hub for them. Weights are always read with their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LLADA: Mapping[str, Any] = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 4096, "n_layers": 32, "n_heads": 32,
    "n_kv_heads": 32, "mlp_hidden_size": 12288, "embedding_size": 126464, "vocab_size": 126464,
    "max_sequence_length": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "mask_token_id": 126336,
    "eos_token_id": 126081, "pad_token_id": 126081,
}  # fmt: skip
MMADA: Mapping[str, Any] = {**LLADA, "model_type": "mmada", "architectures": ["MMadaModelLM"], "new_vocab_size": 134656}
DREAM: Mapping[str, Any] = {
    "model_type": "Dream", "architectures": ["DreamModel"], "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 131072, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "mask_token_id": 151666,
    "pad_token_id": 151643, "bos_token_id": 151643, "eos_token_id": 151643, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA: Mapping[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "eos_token_id": 128001,
    "bos_token_id": 128000, "tie_word_embeddings": False,
}  # fmt: skip
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "GSAI-ML/LLaDA-8B-Base": LLADA,
    "GSAI-ML/LLaDA-8B-Instruct": LLADA,
    "GSAI-ML/LLaDA-1.5": LLADA,
    "Dream-org/Dream-v0-Base-7B": DREAM,
    "Dream-org/Dream-v0-Instruct-7B": DREAM,
    "Gen-Verse/MMaDA-8B-Base": MMADA,
    "Gen-Verse/MMaDA-8B-MixCoT": MMADA,
    "meta-llama/Llama-3.1-8B": LLAMA,
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA,
}


def shape_of(name: str) -> dict[str, Any] | None:
    """The fields of config.json of a Hub id that is known and not in the Hub's cache; else None."""
    from huggingface_hub import try_to_load_from_cache

    if name not in SHAPES or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return None
    return dict(SHAPES[name])
