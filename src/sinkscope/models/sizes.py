"""What config.json and the weight files say about sizes, held against each other before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.errors import CheckpointError
from sinkscope.models.boundary import shown

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.family import Family

DEEPEST, MOST_VALUES = 32, 100_000
LAYERS, WIDTH, VOCABULARY, POSITIONS = 4096, 1 << 20, 1 << 24, 1 << 31
# The most that each size may be, under the names of all families; every one is at least 1.
SIZES = {
    **dict.fromkeys(("n_layers", "num_hidden_layers", "n_layer", "num_layers"), LAYERS),
    **dict.fromkeys(("n_heads", "n_kv_heads", "num_attention_heads", "num_key_value_heads", "n_head"), WIDTH),
    **dict.fromkeys(("d_model", "hidden_size", "n_embd", "mlp_hidden_size", "intermediate_size", "head_dim"), WIDTH),
    **dict.fromkeys(("moe_intermediate_size", "num_experts", "num_experts_per_tok", "block_size"), WIDTH),
    **dict.fromkeys(("vocab_size", "embedding_size", "new_vocab_size"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "max_sequence_length", "n_positions", "sliding_window"), POSITIONS),
}
FLAGS = (
    "use_cache", "use_sliding_window", "tie_word_embeddings", "weight_tying", "attention_bias", "mlp_bias", "is_causal",
    "use_qk_norm", "rope_full_precision",
)  # fmt: skip
MAY_BE_ZERO = (
    "sliding_window",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "block_size",
)  # none of it
ABOVE_ZERO = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta", "mlp_ratio")
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id")
# Heads divide the width, and heads of keys the heads of queries (unless the width of a head stands there by itself).
DIVIDES = (("d_model", "n_heads"), ("n_heads", "n_kv_heads"), ("num_attention_heads", "num_key_value_heads"))
# Fields that choose code instead of a size: kernels may be fetched from the Hub by them, and run.
CODE = (
    "auto_map", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "experts_implementation", "_experts_implementation", "use_kernels", "custom_pipelines",
)  # fmt: skip
SPARE = 1 << 24  # numbers that a model may have beyond its files: buffers, and what the loader then names by key


def checked_config(config: dict[str, Any], where: str) -> dict[str, Any]:
    """A config.json whose plain fields can be counted with, without the fields that would choose code."""
    _check_bounds(config, where)
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        _check_fields(part, where)
    return {field: value for field, value in config.items() if field not in CODE}


def _check_fields(config: dict[str, Any], where: str) -> None:
    for field, most in SIZES.items():
        value, least = config.get(field), 0 if field in MAY_BE_ZERO else 1
        if value is False and field == "sliding_window":  # RND1 writes none of it so
            continue
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise _wrong(where, field, f"a whole number from {least} to {most}", value)
    for field in FLAGS:
        if not isinstance(config.get(field), bool | None):
            raise _wrong(where, field, "true or false", config[field])
    for field in ABOVE_ZERO:
        value = config.get(field)
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value) or value <= 0):
            raise _wrong(where, field, "a finite number above 0", value)
    for field in TOKENS:
        value = config.get(field)
        several = value if isinstance(value, list) and field == "eos_token_id" else [value]
        if value is not None and any(type(one) is not int or not -1 <= one < VOCABULARY for one in several):
            raise _wrong(where, field, f"a token id below {VOCABULARY}", value)
    for whole, part in DIVIDES:
        if config.get(whole) and config.get(part) and config[whole] % config[part]:
            raise _wrong(where, part, f"a divisor of {whole} = {config[whole]}", config[part])


def _check_bounds(config: dict[str, Any], where: str) -> None:
    """Few values, not deep, and no whole number that does not fit 64 bits."""
    for count, (depth, value) in enumerate(_walk(config)):
        if depth > DEEPEST or count > MOST_VALUES:
            raise CheckpointError(
                f"Expected at most {MOST_VALUES} values and {DEEPEST} inside each other in {where}, got more; "
                "fetch the file again."
            )
        if type(value) is int and abs(value) >= 1 << 63:
            raise CheckpointError(f"{where} holds a number of {value.bit_length()} bits; fetch the file again.")


def _walk(config: Any) -> Iterator[tuple[int, Any]]:
    """Every value with its depth, without recursion."""
    left = [(0, config)]
    while left:
        depth, value = left.pop()
        yield depth, value
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(depth + 1, one) for one in inner]


def check_against_weights(
    family: Family, native: PretrainedConfig, files: Sequence[Path], headers: Sequence[dict[str, Any]], asked: str
) -> None:
    """The model that config.json describes is made on the device meta, where it has sizes and takes no memory."""
    tensors = [entry for header in headers for name, entry in header.items() if name != "__metadata__"]
    stored = sum(math.prod(entry["shape"]) for entry in tensors)
    layers = getattr(native, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > len(tensors):
        raise CheckpointError(
            f"config.json of {shown(asked)} names {layers} layers, and its weights hold {len(tensors)} tensors in "
            f"{len(files)} file{'' if len(files) == 1 else 's'}: not of one checkpoint; fetch both again."
        )
    module = empty_module(family, native)
    described = sum(part.numel() for part in (*module.parameters(), *module.buffers()))
    packed = 16 if getattr(native, "quantization_config", None) else 2  # several numbers may share one stored number
    if described > packed * stored + SPARE:
        raise CheckpointError(
            f"config.json of {shown(asked)} describes {described:,} numbers, and its weights hold {stored:,}: not of "
            "one checkpoint; fetch both again."
        )
    rows = getattr(native, "vocab_size", None)
    for field in ("eos_token_id", "pad_token_id"):
        value = getattr(native, field, None)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and isinstance(rows, int) and one >= rows:
                raise _wrong(f"config.json of {shown(asked)}", field, f"one of its {rows} tokens", one)


def empty_module(family: Family, native: PretrainedConfig, device: str = "meta") -> torch.nn.Module:
    """The native module with random weights, or on the device meta with none."""
    import transformers

    from sinkscope.models.weights import quiet

    auto: Any = getattr(transformers, family.native_class or "AutoModelForCausalLM")
    with torch.device(device), quiet():
        made: torch.nn.Module = (auto.from_config if family.native_class is None else auto)(native)
    return made


def _wrong(where: str, field: str, expected: str, came: object) -> CheckpointError:
    return CheckpointError(f"Expected {field} in {where} to be {expected}, got {shown(repr(came))}; fetch it again.")
