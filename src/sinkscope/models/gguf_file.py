"""`load_gguf`: one GGUF file becomes module and tokenizer, directly where it is a plain Llama, else through transformers.

transformers' own reader takes 16 seconds of the processor for SmolLM2-135M; this one takes less than one, with the same
bits. Whatever is not a plain Llama to the last key is left to transformers. The packings of SmolLM2 are unpacked here, three
times as fast as by the package gguf, which unpacks all others and is the slow twin in the tests.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sinkscope.errors import CheckpointError
from sinkscope.models.boundary import shown
from sinkscope.models.gguf_header import Header, StoredTensor
from sinkscope.models.weights import Device, placement, quiet

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedTokenizerBase

    Loaded = tuple[torch.nn.Module, PreTrainedTokenizerBase]

SIZES = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "vocab_size": "vocab_size", "rope.dimension_count": "head_dim",
    "rope.freq_base": "rope_theta", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
}  # fmt: skip
NEEDED = {"block_count", "attention.head_count", "attention.head_count_kv"}
PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
F32, F16, Q4_1, Q8_0, BF16 = 0, 1, 3, 8, 30  # numbers of packings
PLAIN = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
# Files from which transformers takes settings, or another class, where they lie beside the GGUF file.
BESIDE = ("*token*", "*template*", "*.model*", "tekken.json", "config.json")


def load_gguf(asked: str, header: Header, dtype: torch.dtype | str, device: Device) -> Loaded:
    """Module and tokenizer of one GGUF file, its quantised layers turned into plain ones."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise CheckpointError(
            f"{asked} is a GGUF file, and reading one needs the package gguf; install it: pip install gguf"
        ) from None
    # The bar of transformers' conversion is drawn by tqdm itself, past transformers' own switch.
    with quiet(), redirect_stderr(io.StringIO()):
        config = config_of(header)
        if config is None:
            return through_transformers(header, dtype, device)
        return direct(header, config, dtype, device)


def direct(header: Header, config: LlamaConfig, dtype: torch.dtype | str, device: Device) -> Loaded:
    """A plain Llama, in less than a second for SmolLM2-135M."""
    from transformers import LlamaForCausalLM

    wanted = dtype if isinstance(dtype, torch.dtype) else torch.float32  # what "auto" is for unpacked weights
    weights = weights_of(header, wanted)
    native: Any = LlamaForCausalLM
    module, info = native.from_pretrained(
        None, config=config, state_dict=weights, dtype=wanted, output_loading_info=True, **placement(device)
    )
    _refuse_missing(header, info)
    module.config.name_or_path = str(header.path.parent)
    return module.eval(), tokenizer_of(header)


def through_transformers(header: Header, dtype: torch.dtype | str, device: Device) -> Loaded:
    """Any architecture that transformers reads: slow, as it reads the head of the file three times."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(header.path.parent), header.path.name
    auto: Any = AutoModelForCausalLM
    module, info = auto.from_pretrained(
        folder, gguf_file=name, dtype=dtype, quantization_config=GgufConfig(dequantize=True), output_loading_info=True,
        **placement(device),
    )  # fmt: skip
    _refuse_missing(header, info)
    return module.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=name)


def _refuse_missing(header: Header, info: dict[str, Any]) -> None:
    """transformers gives random numbers to the weights that a GGUF file lacks."""
    if lacks := sorted(info["missing_keys"]):
        raise CheckpointError(
            f"{header.path} cannot be read as a GGUF model: it lacks {len(lacks)} weights, such as {lacks[0]}; "
            "fetch it again."
        )


# ---- a plain Llama ----


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
    named = {f"{own}_id": said.get(f"tokenizer.ggml.{name}_token_id") for own, name in SPECIAL.items()}
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


def packed_rows(header: Header) -> Iterator[tuple[StoredTensor, Tensor]]:
    """Every tensor as it is stored: uint8 [row, byte]; nothing is read of a file that is too short for all of them."""
    align = header.values.get("general.alignment", 32)
    start = -(-header.end // align) * align
    widths = [_row_bytes(entry) for entry in header.tensors]
    lengths = [prod(entry.shape[:-1]) * width for entry, width in zip(header.tensors, widths, strict=True)]
    ends = [start + entry.offset + length for entry, length in zip(header.tensors, lengths, strict=True)]
    if max(ends) > header.size or sum(lengths) > header.size:  # tensors over each other would grow as they are unpacked
        raise ValueError("it is cut short before the end of a tensor that it names")
    with header.path.open("rb") as file:
        for entry, width, length in zip(header.tensors, widths, lengths, strict=True):
            file.seek(start + entry.offset)
            yield entry, torch.from_numpy(np.fromfile(file, np.uint8, length).reshape(-1, width))


def _row_bytes(entry: StoredTensor) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    values, width = GGML_QUANT_SIZES[GGMLQuantizationType(entry.kind)]
    if not entry.shape or entry.shape[-1] % values or not prod(entry.shape):
        raise ValueError(f"{shown(entry.name)} has the shape {list(entry.shape)}, which cannot be packed as it says")
    return entry.shape[-1] // values * int(width)


def unpacked(rows: Tensor, kind: int) -> Tensor:
    """uint8 [row, byte] → float32 [row, column]."""
    if kind in PLAIN:
        return rows.view(PLAIN[kind]).float()
    if kind == Q8_0:  # 32 values per block: a half-precision scale, and a signed byte per value
        blocks = rows.reshape(-1, 34)
        return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0)).view(len(rows), -1)
    if kind == Q4_1:  # 32 values per block: scale, least value, two values per byte, the first 16 in the lower halves
        blocks = rows.reshape(-1, 20)
        halves = torch.stack((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), dim=1).view(-1, 32)
        return halves.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2)).view(len(rows), -1)
    from gguf import GGMLQuantizationType, dequantize

    return torch.from_numpy(dequantize(rows.numpy(), GGMLQuantizationType(kind)))


def _half(blocks: Tensor, place: int) -> Tensor:
    return blocks[:, place : place + 2].view(torch.float16).float()


def tokenizer_of(header: Header) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    folder = header.path.parent
    if not any(True for pattern in BESIDE for _ in folder.glob(pattern)):
        # The converter is no public part of transformers: where it is another one, the slow way below still stands.
        with suppress(Exception):
            return _converted(header, folder)
    slow: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder), gguf_file=header.path.name)
    return slow


def _converted(header: Header, folder: Path) -> PreTrainedTokenizerBase:
    from transformers import LlamaConfig, PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

    said = header.values
    if TOKENIZER_MAPPING.get(LlamaConfig, PreTrainedTokenizerFast) is not PreTrainedTokenizerFast:
        raise TypeError("AutoTokenizer gives a Llama another class")
    described, settings = (
        {own: said[f"tokenizer.{name}"] for name, own in names.items() if f"tokenizer.{name}" in said}
        for names in (GGUF_TOKENIZER_MAPPING["tokenizer"], GGUF_TOKENIZER_MAPPING["tokenizer_config"])
    )
    ids = {name: said.get(f"tokenizer.ggml.{word}_token_id") for name, word in SPECIAL.items()}
    settings |= {name: None if one is None else described["tokens"][one] for name, one in ids.items()}
    backend, more = convert_gguf_tokenizer("llama", described)
    # Without the last two, transformers asks the Hub about large vocabularies.
    place: dict[str, Any] = {"name_or_path": str(folder), "is_local": True, "local_files_only": True}
    return PreTrainedTokenizerFast(tokenizer_object=backend, vocab_file=None, **place, **settings, **more)
