"""A GGUF file of a plain Llama becomes transformers' module without transformers' own reader of GGUF files.

That one reads the head of the file three times and takes 16 seconds of the processor for SmolLM2-135M; this one takes
less than one, with the same bits. Whatever is not a plain Llama to the last key is left to transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.models.gguf_blocks import packed_rows, unpacked
from sinkscope.models.gguf_header import Header

if TYPE_CHECKING:
    from transformers import LlamaConfig

SIZES = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "vocab_size": "vocab_size", "rope.dimension_count": "head_dim",
    "rope.freq_base": "rope_theta", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
}  # fmt: skip
NEEDED = {"block_count", "attention.head_count", "attention.head_count_kv"}
TOKENS = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def config_of(header: Header) -> LlamaConfig | None:
    """The native configuration; None for what is not a plain Llama."""
    from transformers import LlamaConfig

    said = header.values
    sizes = {name.removeprefix("llama."): value for name, value in said.items() if name.startswith("llama.")}
    tokens, align = said.get("tokenizer.ggml.tokens"), said.get("general.alignment", 32)
    plain = (
        said.get("general.architecture") == "llama"
        and said.get("general.name") != "mistral"  # transformers takes this one name for another architecture
        # A key that is not known here may change the mathematics: scaled rotations, experts, windows.
        and NEEDED <= sizes.keys() <= SIZES.keys()
        and all(type(value) in (int, float) for value in sizes.values())
        and type(align) is int
        and align.bit_count() == 1
        and isinstance(tokens, list)
        and _has_every_weight(header)
    )
    if not plain:
        return None
    named = {f"{own}_token_id": said.get(f"tokenizer.ggml.{name}_token_id") for name, own in TOKENS.items()}
    fields: dict[str, Any] = {SIZES[name]: value for name, value in sizes.items()}
    fields |= {name: value for name, value in named.items() if value is not None}
    tied = all(entry.name != "output.weight" for entry in header.tensors)
    return LlamaConfig(**{"vocab_size": len(tokens or ()), **fields}, tie_word_embeddings=tied)


def _has_every_weight(header: Header) -> bool:
    """Whether every weight of a Llama is there, and nothing else."""
    layers = range(header.values["llama.block_count"])
    expected = {f"blk.{layer}.{part}.weight" for layer in layers for part in PARTS}
    found = {entry.name for entry in header.tensors} - {"output.weight"}
    return found == expected | {"token_embd.weight", "output_norm.weight"}


def weights_of(header: Header, dtype: torch.dtype) -> dict[str, Tensor]:
    """The state dict of a file that `config_of` has a configuration for."""
    heads = {
        "attn_q": header.values["llama.attention.head_count"],
        "attn_k": header.values["llama.attention.head_count_kv"],
    }
    weights: dict[str, Tensor] = {}
    for entry, stored in packed_rows(header):
        block, _, part = entry.name.removesuffix(".weight").rpartition(".")
        key = f"model.layers.{block.removeprefix('blk.')}.{PARTS[part]}" if block else ENDS[part]
        rows = _unpaired(stored, heads[part]) if part in heads else stored
        weights[f"{key}.weight"] = unpacked(rows, entry.kind).view(entry.shape).to(dtype)
    return weights


def _unpaired(rows: Tensor, heads: int) -> Tensor:
    """llama.cpp has the two rows that are rotated together as neighbours, transformers half a head apart."""
    paired: Tensor = rows.unflatten(0, (heads, -1, 2))
    return paired.transpose(1, 2).flatten(0, 2)
