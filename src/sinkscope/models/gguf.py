"""`load_gguf`: a GGUF file of a plain Llama becomes module and tokenizer, with the same bits as transformers gives.

transformers' own reader takes 16 seconds of the processor for SmolLM2-135M; this one takes two.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import operator
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
from sinkscope.files import short
from sinkscope.models.checkpoint import as_checkpoint_error
from sinkscope.models.weights import Device, placement, quiet

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedTokenizerBase

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


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself; `start`: where the data begins."""

    path: Path
    values: dict[str, Any] = field(repr=False)
    tensors: dict[str, Stored] = field(repr=False)
    start: int


def read_gguf(path: Path) -> Header:
    """The head of a file; one that is no GGUF, is cut short, or says more than it holds is refused."""
    with as_checkpoint_error(f"{path} (a GGUF model)"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = read_head(path, Reader(data))
        check_sizes(header)
    return header


class Reader:
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


def read_head(path: Path, reader: Reader) -> Header:
    magic, (version,) = reader.take(4), reader.numbers("I")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"expected the mark GGUF and version 2 or 3, got {magic!r} and {version}")
    tensors, keys = reader.numbers("Q", 2)
    values: dict[str, Any] = {}
    for _ in range(keys):
        add(values, reader.text(), reader.value(*reader.numbers("I")))
    entries: dict[str, Stored] = {}
    for _ in range(tensors):
        name = reader.text()
        shape = reader.numbers("Q", *reader.numbers("I"))
        (kind,), (offset,) = reader.numbers("I"), reader.numbers("Q")
        add(entries, name, (shape[::-1], kind, offset))
    align = operator.index(values.get("general.alignment", 32))
    return Header(path, values, entries, -(-reader.place // align) * align)


def add(table: dict[str, Any], name: str, value: Any) -> None:
    """Of two sizes under one name one would be checked, and the other be built."""
    if name in table:
        raise ValueError(f"it names {short(name)} twice")
    table[name] = value


def check_sizes(header: Header) -> None:
    """A default in the place of a missing size would be a model of billions, and a size may say anything."""
    longest = max((side for shape, _, _ in header.tensors.values() for side in shape), default=0)
    most = {"block_count": len(header.tensors), **dict.fromkeys(SIDES, longest)}
    # A list has one number per layer, and only some architectures take it.
    found = [(name.partition(".")[2], one) for name, one in header.values.items() if not isinstance(one, list)]
    missing = [(size, None) for size in ("block_count", *SIDES[:3]) if size not in dict(found)]
    for size, value in [*found, *missing]:
        if size in most and (type(value) is not int or not 0 < value <= most[size]):
            raise ValueError(f"its {size} is {short(value)}, where its tensors allow whole numbers up to {most[size]}")


def load_gguf(path: Path, dtype: torch.dtype | str, device: Device) -> Loaded:
    """Module and tokenizer of one GGUF file, its quantised layers turned into plain ones."""
    from transformers import LlamaForCausalLM

    header = read_gguf(path)
    config = native_config(header)
    wanted = dtype if isinstance(dtype, torch.dtype) else torch.float32  # what "auto" is for unpacked weights
    native: Any = LlamaForCausalLM
    with quiet(), redirect_stderr(io.StringIO()):  # the bar of transformers' conversion is drawn past its own switch
        module = native.from_pretrained(
            None, config=config, state_dict=unpack_weights(header, wanted), dtype=wanted, **placement(device)
        )
        module.config.name_or_path = str(path.parent)
        return module.eval(), load_tokenizer(header)


def read_gguf_config(path: Path) -> LlamaConfig:
    """The native configuration of a file."""
    return native_config(read_gguf(path))


def fingerprint(path: Path) -> str:
    """sha256 of a file's first and last MiB: its tokenizer, names and shapes, and some of its weights."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(1 << 20))
        file.seek(max(path.stat().st_size - (1 << 20), 0))
        digest.update(file.read())
    return digest.hexdigest()


def native_config(header: Header) -> LlamaConfig:
    """The native configuration of a plain Llama; anything else is refused."""
    from transformers import LlamaConfig

    values = header.values
    sizes = {name.removeprefix("llama."): value for name, value in values.items() if name.startswith("llama.")}
    tokens, layers = values.get("tokenizer.ggml.tokens"), range(sizes.get("block_count", 0))
    weights = {f"blk.{layer}.{part}.weight" for layer in layers for part in PARTS}
    plain = (
        values.get("general.architecture") == "llama"
        and values.get("general.name") != "mistral"  # transformers takes this one name for another architecture
        # An unknown key may change the mathematics: scaled rotations, experts, windows.
        and {"attention.head_count", "attention.head_count_kv"} <= sizes.keys() <= SIZES.keys()
        and all(type(value) in (int, float) for value in sizes.values())
        and isinstance(tokens, list)
        and header.tensors.keys() - {"output.weight"} == weights | {"token_embd.weight", "output_norm.weight"}
    )
    if not plain:
        raise CheckpointError(
            f"{short(header.path)} is no GGUF file of a plain Llama with all its weights, the one kind that is read here; "
            "load the checkpoint that it was made from."
        )
    named = {f"{own}_id": values.get(f"tokenizer.ggml.{name}_token_id") for own, name in SPECIAL.items()}
    fields: dict[str, Any] = {SIZES[name]: value for name, value in sizes.items()}
    fields |= {name: value for name, value in named.items() if value is not None}
    tied = "output.weight" not in header.tensors
    return LlamaConfig(**{"vocab_size": len(tokens or ()), **fields}, tie_word_embeddings=tied)


def unpack_weights(header: Header, dtype: torch.dtype) -> dict[str, Tensor]:
    """The state dict of a file that `native_config` has a configuration for."""
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


def load_tokenizer(header: Header) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    # The converter is no public part of transformers: where it is another one, its slow reader still stands.
    with suppress(Exception):
        return convert_tokenizer(header)
    slow: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(header.path.parent), gguf_file=header.path.name)
    return slow


def convert_tokenizer(header: Header) -> PreTrainedTokenizerBase:
    from transformers import LlamaConfig, PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

    values = header.values
    if TOKENIZER_MAPPING.get(LlamaConfig, PreTrainedTokenizerFast) is not PreTrainedTokenizerFast:
        raise TypeError("AutoTokenizer gives a Llama another class")
    described, settings = (
        {own: values[f"tokenizer.{name}"] for name, own in names.items() if f"tokenizer.{name}" in values}
        for names in (GGUF_TOKENIZER_MAPPING["tokenizer"], GGUF_TOKENIZER_MAPPING["tokenizer_config"])
    )
    ids = {name: values.get(f"tokenizer.ggml.{word}_token_id") for name, word in SPECIAL.items()}
    settings |= {name: None if one is None else described["tokens"][one] for name, one in ids.items()}
    backend, more = convert_gguf_tokenizer("llama", described)
    # Without the last two, transformers asks the Hub about large vocabularies.
    place: dict[str, Any] = {"name_or_path": str(header.path.parent), "is_local": True, "local_files_only": True}
    return PreTrainedTokenizerFast(tokenizer_object=backend, vocab_file=None, **place, **settings, **more)
