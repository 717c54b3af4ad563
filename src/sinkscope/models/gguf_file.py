"""`load_gguf`: one GGUF file becomes module and tokenizer, directly where it is a plain Llama, else through transformers.

transformers' own reader takes 16 seconds of the processor for SmolLM2-135M; this one takes two, with the same bits.
Whatever is not a plain Llama to the last key is left to transformers.
"""

from __future__ import annotations

import io
import mmap
import struct
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sinkscope.errors import CheckpointError
from sinkscope.io.reading import reason, short
from sinkscope.models.weights import Device, placement, quiet

if TYPE_CHECKING:
    from transformers import LlamaConfig, PretrainedConfig, PreTrainedTokenizerBase

    Loaded = tuple[torch.nn.Module, PreTrainedTokenizerBase]

# struct's letter for a plain value, by its type
LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
Stored = tuple[tuple[int, ...], int, int]  # shape in torch's order, number of the packing, offset behind the head
# Sizes that a model is built from, each no larger than the longest side of a tensor in the file.
SIDES = ("embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv", "vocab_size")
SIZES = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "vocab_size": "vocab_size", "rope.dimension_count": "head_dim",
    "rope.freq_base": "rope_theta", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
}  # fmt: skip
PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
# Files from which transformers takes settings, or another class, where they lie beside the GGUF file.
BESIDE = ("*token*", "*template*", "*.model*", "tekken.json", "config.json")


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself; `start`: where the data begins."""

    path: Path
    values: dict[str, Any] = field(repr=False)
    tensors: dict[str, Stored] = field(repr=False)
    start: int


def read_gguf(path: Path) -> Header:
    """The head of a file; one that is no GGUF, is cut short, or says more than it holds is refused."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _head(path, _Reader(data))
        _check_sizes(header)
    except (OSError, ValueError, RecursionError) as error:
        why = reason(error).removeprefix("ValueError: ")
        raise CheckpointError(f"{short(path)} cannot be read as a GGUF model: {why}; fetch it again.") from None
    return header


class _Reader:
    """Little-endian values of a file, none from beyond its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.place = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.place:
            raise ValueError("it is cut short, or gives a length beyond its end")
        self.place += count
        return self.data[self.place - count : self.place]

    def numbers(self, letter: str, count: int = 1) -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{letter}", self.take(count * struct.calcsize(f"<{letter}")))

    def text(self) -> str:
        return self.take(*self.numbers("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind in LETTERS:
            return self.numbers(LETTERS[kind])[0]
        if kind == TEXT:
            return self.text()
        if kind != LIST:
            raise ValueError(f"it holds a value of the unknown type {kind}")
        (inner,), (count,) = self.numbers("I"), self.numbers("Q")
        if inner in LETTERS:
            return list(self.numbers(LETTERS[inner], count))
        return [self.value(inner) for _ in range(count)]


def _head(path: Path, reader: _Reader) -> Header:
    magic, (version,) = reader.take(4), reader.numbers("I")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"expected the mark GGUF and version 2 or 3, got {magic!r} and {version}")
    tensors, keys = reader.numbers("Q", 2)
    values: dict[str, Any] = {}
    for _ in range(keys):
        name = reader.text()
        if name in values:  # of two sizes one would be checked, and the other be built
            raise ValueError(f"it names {short(name)} twice")
        values[name] = reader.value(*reader.numbers("I"))
    entries: dict[str, Stored] = {}
    for _ in range(tensors):
        name = reader.text()
        if name in entries:
            raise ValueError(f"it names the tensor {short(name)} twice")
        shape = reader.numbers("Q", *reader.numbers("I"))
        (kind,), (offset,) = reader.numbers("I"), reader.numbers("Q")
        entries[name] = shape[::-1], kind, offset
    align = values.get("general.alignment", 32)
    if type(align) is not int or align.bit_count() != 1:
        raise ValueError(f"it aligns tensors to {short(align)} bytes, which is no power of two")
    return Header(path, values, entries, -(-reader.place // align) * align)


def _check_sizes(header: Header) -> None:
    """A default in the place of a missing size would be a model of billions, and a size may say anything."""
    longest = max((side for shape, _, _ in header.tensors.values() for side in shape), default=0)
    most = {"block_count": len(header.tensors), **dict.fromkeys(SIDES, longest)}
    # A list has one number per layer, and only some architectures take it.
    found = [(name.partition(".")[2], one) for name, one in header.values.items() if not isinstance(one, list)]
    for size in ("block_count", *SIDES[:3]):
        if size not in dict(found):
            raise ValueError(f"it does not say its {size}")
    for size, value in found:
        if size in most and (type(value) is not int or not 0 < value <= most[size]):
            raise ValueError(f"its {size} is {short(value)}, where its tensors allow whole numbers up to {most[size]}")


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
    """A plain Llama, in two seconds for SmolLM2-135M."""
    from transformers import LlamaForCausalLM

    wanted = dtype if isinstance(dtype, torch.dtype) else torch.float32  # what "auto" is for unpacked weights
    native: Any = LlamaForCausalLM
    module = native.from_pretrained(
        None, config=config, state_dict=weights_of(header, wanted), dtype=wanted, **placement(device)
    )
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
    if lacks := sorted(info["missing_keys"]):  # transformers gives random numbers to them
        raise CheckpointError(
            f"{header.path} cannot be read as a GGUF model: it lacks {len(lacks)} weights, such as {lacks[0]}; "
            "fetch it again."
        )
    return module.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=name)


def gguf_config(path: Path) -> PretrainedConfig:
    """The native configuration of a file."""
    from transformers import AutoConfig

    with quiet():
        plain = config_of(read_gguf(path))
        found: PretrainedConfig = plain or AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    return found


# ---- a plain Llama ----


def config_of(header: Header) -> LlamaConfig | None:
    """The native configuration; None for what is not a plain Llama."""
    from transformers import LlamaConfig

    said = header.values
    sizes = {name.removeprefix("llama."): value for name, value in said.items() if name.startswith("llama.")}
    tokens, layers = said.get("tokenizer.ggml.tokens"), range(sizes.get("block_count", 0))
    weights = {f"blk.{layer}.{part}.weight" for layer in layers for part in PARTS}
    plain = (
        said.get("general.architecture") == "llama"
        and said.get("general.name") != "mistral"  # transformers takes this one name for another architecture
        # A key that is not known here may change the mathematics: scaled rotations, experts, windows.
        and {"attention.head_count", "attention.head_count_kv"} <= sizes.keys() <= SIZES.keys()
        and all(type(value) in (int, float) for value in sizes.values())
        and isinstance(tokens, list)
        and header.tensors.keys() - {"output.weight"} == weights | {"token_embd.weight", "output_norm.weight"}
    )
    if not plain:
        return None
    named = {f"{own}_id": said.get(f"tokenizer.ggml.{name}_token_id") for own, name in SPECIAL.items()}
    fields: dict[str, Any] = {SIZES[name]: value for name, value in sizes.items()}
    fields |= {name: value for name, value in named.items() if value is not None}
    tied = "output.weight" not in header.tensors
    return LlamaConfig(**{"vocab_size": len(tokens or ()), **fields}, tie_word_embeddings=tied)


def weights_of(header: Header, dtype: torch.dtype) -> dict[str, Tensor]:
    """The state dict of a file that `config_of` has a configuration for."""
    import gguf

    data = np.memmap(header.path, mode="r")
    heads = {
        "attn_q": header.values["llama.attention.head_count"],
        "attn_k": header.values["llama.attention.head_count_kv"],
    }
    weights: dict[str, Tensor] = {}
    taken = header.start
    for name, (shape, kind, offset) in header.tensors.items():
        packing = gguf.GGMLQuantizationType(kind)
        stored = gguf.quant_shape_to_byte_shape(shape, packing)
        begin, taken = header.start + offset, taken + prod(stored)
        # All together must fit too: tensors that lie over each other would grow as they are unpacked.
        if max(begin + prod(stored), taken) > len(data):
            raise ValueError("it is cut short before the end of a tensor that it names")
        rows = torch.from_numpy(gguf.dequantize(data[begin : begin + prod(stored)].reshape(stored).copy(), packing))
        block, _, part = name.removesuffix(".weight").rpartition(".")
        if part in heads:  # llama.cpp has the two rows that are rotated together as neighbours, not half a head apart
            rows = rows.unflatten(0, (heads[part], -1, 2)).transpose(1, 2).flatten(0, 2)
        key = f"model.layers.{block.removeprefix('blk.')}.{PARTS[part]}" if block else ENDS[part]
        weights[f"{key}.weight"] = rows.to(dtype)
    return weights


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
