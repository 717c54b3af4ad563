"""What config.json, the weight files and this machine say about sizes, held against each other before anything is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.errors import CheckpointError
from sinkscope.fields import TRUTH, Allowed, number, whole
from sinkscope.io.reading import short

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.family import Family

Header = dict[str, tuple[str, tuple[int, ...]]]  # of a safetensors file: name → dtype and shape
LAYERS, WIDTH, VOCABULARY, POSITIONS = 4096, 1 << 20, 1 << 24, 1 << 31
TOKEN = Allowed(f"a token id below {VOCABULARY}", whole(-1, VOCABULARY - 1))


def _from(least: int, most: int) -> Allowed:
    return Allowed(f"a whole number from {least} to {most}", whole(least, most))


# What each plain field may hold beside null, under the names of all families.
FIELDS: dict[str, Allowed] = {
    **dict.fromkeys(("n_layers", "num_hidden_layers", "n_layer", "num_layers"), _from(1, LAYERS)),
    **dict.fromkeys(("n_heads", "n_kv_heads", "num_attention_heads", "num_key_value_heads", "n_head"), _from(1, WIDTH)),
    **dict.fromkeys(("d_model", "hidden_size", "n_embd", "mlp_hidden_size", "intermediate_size"), _from(1, WIDTH)),
    **dict.fromkeys(("moe_intermediate_size", "num_experts", "num_experts_per_tok", "block_size"), _from(0, WIDTH)),
    **dict.fromkeys(("vocab_size", "embedding_size", "new_vocab_size"), _from(1, VOCABULARY)),
    **dict.fromkeys(("max_position_embeddings", "max_sequence_length", "n_positions"), _from(1, POSITIONS)),
    **dict.fromkeys(("use_cache", "use_sliding_window", "tie_word_embeddings", "weight_tying", "is_causal"), TRUTH),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_qk_norm", "rope_full_precision"), TRUTH),
    **dict.fromkeys(
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta", "mlp_ratio"),
        Allowed("a finite number above 0", lambda value: number(0)(value) and value > 0),
    ),
    **dict.fromkeys(("bos_token_id", "pad_token_id", "mask_token_id"), TOKEN),
    "head_dim": _from(1, WIDTH),
    "sliding_window": Allowed(
        f"a whole number from 0 to {POSITIONS}", lambda value: value is False or whole(0, POSITIONS)(value)
    ),  # RND1: false
    "eos_token_id": Allowed(
        TOKEN.expected, lambda value: all(map(TOKEN, value if isinstance(value, list) else [value]))
    ),
}
# Heads divide the width, and heads of keys the heads of queries (unless the width of a head stands there by itself).
DIVIDES = (("d_model", "n_heads"), ("n_heads", "n_kv_heads"), ("num_attention_heads", "num_key_value_heads"))
# Fields that choose code instead of a size: kernels may be fetched from the Hub by them, and run.
CODE = (
    "auto_map", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "experts_implementation", "_experts_implementation", "use_kernels", "custom_pipelines",
)  # fmt: skip
GB = 1e9
# How numbers are stored; those of eight bits have no dtype to be loaded in.
STORED = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "", "F8_E5M2": ""}
SPARE = 1 << 24  # numbers that a model may have beyond its files: buffers, and what the loader then names by key


def checked_config(config: dict[str, Any], where: str) -> dict[str, Any]:
    """A config.json whose plain fields can be counted with, without the fields that would choose code."""
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for field, allowed in FIELDS.items():
            if part.get(field) is not None and not allowed(part[field]):
                raise _wrong(where, field, allowed.expected, part[field])
        for size, divisor in DIVIDES:
            if part.get(size) and part.get(divisor) and part[size] % part[divisor]:
                raise _wrong(where, divisor, f"a divisor of {size} = {part[size]}", part[divisor])
    return {field: value for field, value in config.items() if field not in CODE}


def check_against_weights(family: Family, native: PretrainedConfig, files: Mapping[Path, Header], asked: str) -> None:
    """The model that config.json describes is made on the device meta, where it has sizes and takes no memory."""
    tensors = [shape for header in files.values() for _, shape in header.values()]
    stored = sum(map(math.prod, tensors))
    layers = getattr(native, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > len(tensors):
        raise CheckpointError(
            f"config.json of {short(asked)} names {layers} layers, and its weights hold {len(tensors)} tensors in "
            f"{len(files)} file{'' if len(files) == 1 else 's'}: of different checkpoints; fetch both again."
        )
    module = empty_module(family, native)
    described = sum(part.numel() for part in (*module.parameters(), *module.buffers()))
    packed = 16 if getattr(native, "quantization_config", None) else 2  # several numbers may share one stored number
    if described > packed * stored + SPARE:
        raise CheckpointError(
            f"config.json of {short(asked)} describes {described:,} numbers, and its weights hold {stored:,}: of "
            "different checkpoints; fetch both again."
        )
    rows = getattr(native, "vocab_size", None)
    for field in ("eos_token_id", "pad_token_id"):
        value = getattr(native, field, None)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and isinstance(rows, int) and one >= rows:
                raise _wrong(f"config.json of {short(asked)}", field, f"one of its {rows} tokens", one)


def refuse_unless_fits(asked: str, headers: Iterable[Header], dtype: torch.dtype | str, on_cpu: bool) -> None:
    """Refuse weights that would be turned into more bytes than this machine has left.

    Weights that keep their dtype are mapped from their files and may be larger than what is free; those that are
    converted are copied into memory.
    """
    if not on_cpu or isinstance(dtype, str):
        return
    name, free = str(dtype).removeprefix("torch."), available()
    stored = [entry for header in headers for entry in header.values()]
    needed = sum(math.prod(shape) for kind, shape in stored if STORED.get(kind, name) != name) * dtype.itemsize
    if free is not None and needed > free:
        raise CheckpointError(
            f"{asked} takes {needed / GB:.1f} GB in {name}, and {free / GB:.1f} GB of memory are available; load it as it "
            "is stored: dtype=auto."
        )


def available() -> int | None:
    """Bytes of memory that this process could get: the machine's, or less where its group is limited; None if unknown."""
    found: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        usage = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        if limit != "max":
            found.append(int(limit) - int(used) + int(usage.get("file", 0)))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def empty_module(family: Family, native: PretrainedConfig) -> torch.nn.Module:
    """The native module on the device meta, without weights."""
    from sinkscope.models.weights import native_class, quiet

    made: Any = native_class(family) if family.native_class else native_class(family).from_config
    with torch.device("meta"), quiet():
        module: torch.nn.Module = made(native)
    return module


def _wrong(where: str, field: str, expected: str, came: object) -> CheckpointError:
    return CheckpointError(f"Expected {field} in {where} to be {expected}, got {short(repr(came))}; fetch it again.")
