"""Small random checkpoints made on the spot, in the families' own formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

WORDS = (
    "the",
    "sum",
    "of",
    "two",
    "and",
    "three",
    "is",
    "five",
    "apples",
    "Tom",
    "has",
    "one",
    "more",
    "than",
    ".",
    "?",
)


def save(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def save_tokenizer(folder: Path, **special: str) -> Path:
    """A word tokenizer; special=mask_token="<m>" and the like. Ids: the words first, then the special tokens."""
    words = ["<unk>", *WORDS, *special.values()]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", *special.values()])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def llama_weights(
    vocabulary: int, width: int, layers: int, heads: int, kv_heads: int, inner: int, bias: bool = False, seed: int = 0
) -> dict[str, Tensor]:
    """Weights under Llama's (with bias: Qwen2's) names, wide enough that attention and choices are not flat."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    dim = width // heads
    weights = {
        "model.embed_tokens.weight": normal(vocabulary, width, scale=1.0),
        "model.norm.weight": 1 + normal(width, scale=0.2),
        "lm_head.weight": normal(vocabulary, width, scale=1.0),
    }
    for layer in range(layers):
        name = f"model.layers.{layer}."
        for part, rows in (("q", heads * dim), ("k", kv_heads * dim), ("v", kv_heads * dim)):
            weights[name + f"self_attn.{part}_proj.weight"] = normal(rows, width, scale=1.5 * width**-0.5)
            if bias:
                weights[name + f"self_attn.{part}_proj.bias"] = normal(rows, scale=0.2)
        weights[name + "self_attn.o_proj.weight"] = normal(width, heads * dim, scale=width**-0.5)
        weights[name + "mlp.gate_proj.weight"] = normal(inner, width, scale=width**-0.5)
        weights[name + "mlp.up_proj.weight"] = normal(inner, width, scale=width**-0.5)
        weights[name + "mlp.down_proj.weight"] = normal(width, inner, scale=inner**-0.5)
        weights[name + "input_layernorm.weight"] = 1 + normal(width, scale=0.2)
        weights[name + "post_attention_layernorm.weight"] = 1 + normal(width, scale=0.2)
    return weights


def causal_config(
    model_type: str = "llama", vocabulary: int = 64, width: int = 32, layers: int = 2, heads: int = 4,
    kv_heads: int = 2, inner: int = 48, theta: float = 1e4, eps: float = 1e-5, context: int = 128, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": model_type, "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": inner, "rms_norm_eps": eps,
        "rope_theta": theta, "max_position_embeddings": context, "tie_word_embeddings": False, "hidden_act": "silu",
        "torch_dtype": "float32", "eos_token_id": 2, "bos_token_id": 1, **more,
    }  # fmt: skip


def make_causal(folder: Path, **sizes: Any) -> Path:
    """A random Llama checkpoint, as transformers stores one."""
    config = causal_config(**sizes)
    return save(folder, config, _weights_of(config))


def make_dream(folder: Path, **sizes: Any) -> Path:
    config = causal_config(**{"model_type": "Dream", "mask_token_id": 3, "pad_token_id": 2, **sizes})
    return save(folder, config, _weights_of(config, bias=True))


def make_llada(
    folder: Path, vocabulary: int = 64, width: int = 32, layers: int = 2, heads: int = 4, kv_heads: int = 4,
    inner: int = 48, theta: float = 5e5, eps: float = 1e-5, context: int = 128, **more: Any,
) -> Path:  # fmt: skip
    """A random LLaDA checkpoint under the names of LLaDA's own files."""
    config = {
        "model_type": "llada", "embedding_size": vocabulary, "vocab_size": vocabulary, "d_model": width,
        "n_layers": layers, "n_heads": heads, "n_kv_heads": kv_heads, "mlp_hidden_size": inner,
        "max_sequence_length": context, "rms_norm_eps": eps, "rope_theta": theta,
        "weight_tying": False, "eos_token_id": 2, "pad_token_id": 2,
        "mask_token_id": 3, **more,
    }  # fmt: skip
    weights = llama_weights(vocabulary, width, layers, heads, kv_heads, inner)
    return save(folder, config, {llada_name(name): tensor for name, tensor in weights.items()})


def llada_name(name: str) -> str:
    """The inverse of LLaDA's key map, spelt out by hand so that the map itself is tested."""
    top = {
        "model.embed_tokens.weight": "wte.weight",
        "model.norm.weight": "ln_f.weight",
        "lm_head.weight": "ff_out.weight",
    }
    if name in top:
        return f"model.transformer.{top[name]}"
    _, _, layer, rest = name.split(".", 3)
    part = rest.removesuffix(".weight")
    own = {
        "self_attn.q_proj": "q_proj", "self_attn.k_proj": "k_proj", "self_attn.v_proj": "v_proj",
        "self_attn.o_proj": "attn_out", "mlp.gate_proj": "ff_proj", "mlp.up_proj": "up_proj", "mlp.down_proj": "ff_out",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm",
    }[part]  # fmt: skip
    return f"model.transformer.blocks.{layer}.{own}.weight"


def _weights_of(config: dict[str, Any], bias: bool = False) -> dict[str, Tensor]:
    return llama_weights(
        config["vocab_size"], config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"],
        config["num_key_value_heads"], config["intermediate_size"], bias,
    )  # fmt: skip


def make_fast_dllm(folder: Path, **sizes: Any) -> Path:
    config = causal_config(**{"model_type": "Fast_dLLM_Qwen", "mask_token_id": 3, "bd_size": 8, **sizes})
    return save(folder, config, _weights_of(config, bias=True))


def make_open_dcoder(folder: Path, **sizes: Any) -> Path:
    """Told from a causal Qwen2 by its tokenizer alone, so it needs one; 20 tokens and more."""
    save_tokenizer(folder, eos_token="</s>", mask_token="[MASK]")
    config = causal_config(**{"model_type": "qwen2", **sizes})
    return save(folder, config, _weights_of(config, bias=True))


def make_llada_moe(folder: Path, experts: int = 6, chosen: int = 2, **sizes: Any) -> Path:
    """A random LLaDA-MoE checkpoint: Qwen3Moe's keys, an expert each its own matrices."""
    made = causal_config(**{"model_type": "llada", "mask_token_id": 3, **sizes})
    width, inner = made["hidden_size"], made.pop("intermediate_size")
    config = {
        **made, "architectures": ["LLaDAMoEModelLM"], "num_experts": experts, "num_experts_per_tok": chosen,
        "expert_intermediate_size": inner, "dense_intermediate_size": 4 * inner, "qk_layernorm": True,
        "moe_router_enable_expert_bias": False, "shared_expert_intermediate_size": None, "norm_topk_prob": None,
        "moe_layer_freq": [1] * made["num_hidden_layers"], "partial_rotary_factor": 1,
    }  # fmt: skip
    weights = _weights_of({**made, "intermediate_size": inner})
    generator = torch.Generator().manual_seed(5)
    for layer in range(made["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        for part in "qk":
            size = width // made["num_attention_heads"]
            weights[name + f"self_attn.{part}_norm.weight"] = 0.5 + torch.rand(size, generator=generator)
        weights[name + "mlp.gate.weight"] = torch.randn(experts, width, generator=generator) * 0.5
        for part in ("gate", "up", "down"):
            plain = weights.pop(name + f"mlp.{part}_proj.weight")
            for expert in range(experts):
                noise = torch.randn(plain.shape, generator=generator) * plain.std()
                weights[name + f"mlp.experts.{expert}.{part}_proj.weight"] = plain + noise
    return save(folder, config, weights)
