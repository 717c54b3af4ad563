"""Small random Llamas as GGUF files, written by the package gguf as llama.cpp's own converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from made_models import llama_weights

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def make_gguf(
    path: Path, kind: str = "F32", pieces: str = "bytes", tied: bool = False, heads: int = 4, kv_heads: int = 2,
    layers: int = 2, lacks: str = "", more: dict[str, int] | None = None, extra: dict[str, Tensor] | None = None,
    architecture: str = "llama", vocabulary: int | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Write a file and give its weights under transformers' names, before they were packed.

    lacks: GGUF's name of a weight to leave out. more: keys beside Llama's own. extra: tensors beside Llama's own.
    """
    import gguf

    tokens = _tokens(pieces)
    rows = len(tokens[0]) if vocabulary is None else vocabulary
    width, inner = 16 * heads, 96
    weights = llama_weights(rows, width, layers, heads, kv_heads, inner)
    if tied:
        del weights["lm_head.weight"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("made")
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5e4)
    writer.add_rope_dimension_count(16)
    for key, value in (more or {}).items():
        writer.add_uint32(key, value)
    _add_tokenizer(writer, pieces, *tokens)
    for name, tensor in {**weights, **(extra or {})}.items():
        own = gguf_name(name)
        if own != lacks:
            _add_tensor(writer, own, _paired(own, tensor, heads, kv_heads), kind if tensor.ndim == 2 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def gguf_name(name: str) -> str:
    part = name.removesuffix(".weight")
    if not part.startswith("model.layers."):
        return f"{NAMES.get(part, part)}.weight"
    _, _, layer, rest = part.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def _paired(name: str, tensor: Tensor, heads: int, kv_heads: int) -> Tensor:
    """The order of rows that llama.cpp rotates in: the two of a pair beside each other."""
    count = heads if ".attn_q." in name else kv_heads if ".attn_k." in name else 0
    if not count:
        return tensor
    rows = [
        head * 16 + half * 8 + pair for head in range(count) for pair in range(8) for half in range(2)
    ]  # a head has 16 rows
    return tensor[torch.tensor(rows)]


def _add_tensor(writer: Any, name: str, tensor: Tensor, kind: str) -> None:
    import gguf

    packed = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quantize(tensor.numpy(), packed), raw_dtype=packed)


def _tokens(pieces: str) -> tuple[list[str], list[int]]:
    """Texts of tokens, and their kinds: 1 plain, 3 control, 6 a byte."""
    if pieces == "bytes":
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        plain = [*bytes_to_unicode().values(), "he", "ll", "hell", "Ġt", "Ġth"]
        return [*special, *plain], [3] * len(special) + [1] * len(plain)
    special, plain = ["<unk>", "<s>", "</s>"], ["▁", "h", "e", "l", "o", "he", "▁he", "lo", "t", "▁t"]
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    return [*special, *single, *plain], [3] * 3 + [6] * 256 + [1] * len(plain)


def _add_tokenizer(writer: Any, pieces: str, tokens: list[str], kinds: list[int]) -> None:
    writer.add_tokenizer_model("gpt2" if pieces == "bytes" else "llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if pieces == "bytes":
        writer.add_tokenizer_pre("smollm")
        writer.add_token_merges(["h e", "l l", "he ll", "Ġ t", "Ġt h"])
        writer.add_pad_token_id(2)
        writer.add_chat_template(CHAT)
    else:
        writer.add_token_scores([-float(rank) for rank in range(len(tokens))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
