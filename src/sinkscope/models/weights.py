"""Stored weights become a native transformers module, with every key accounted for, packed or plain; and a folder again."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sinkscope.errors import CheckpointError
from sinkscope.files import describe_error, short
from sinkscope.models.checkpoint import Header, native_class
from sinkscope.models.family import Config, Family
from sinkscope.models.model import Model

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SCHEMES = ("int8", "int4")  # a scale per row; a scale and a zero point per GROUP inputs of a row
GROUP = 32
FAMILY = "sinkscope_family"  # in config.json: the family of a folder that `save` wrote
BLOCK = "sinkscope_block"
DECODE = "sinkscope_decode"
OWN_TYPE = "sinkscope_"  # how types begin that transformers does not know
ROTARY = "rope_full_precision"

Device = str | torch.device | dict[str, Any] | None  # a mapping: module → device


def load_weights(
    family: Family,
    folder: Path,
    native: PretrainedConfig,
    dtype: torch.dtype | str,
    device: Device,
    files: Mapping[Path, Header],
) -> torch.nn.Module:
    """The module of a checkpoint folder; fails unless no key is missing, unexpected or of another shape."""
    with quiet():
        module, info = native_class(family).from_pretrained(
            str(folder), config=native, key_mapping=family.key_mapping or None, output_loading_info=True,
            dtype=dtype, trust_remote_code=False, use_safetensors=True, ignore_mismatched_sizes=True, **placement(device),
        )  # fmt: skip
    # Sizes that differ are let through above only because transformers' own error does not say which.
    if info["mismatched_keys"]:
        key, came, expected = sorted(info["mismatched_keys"])[0]
        raise CheckpointError(
            f"Expected {key} of shape {tuple(expected)} by config.json, got {tuple(came)} in {folder}; "
            "weights and config.json are of different checkpoints."
        )
    for kind, keys in (("missing", info["missing_keys"]), ("unexpected", info["unexpected_keys"])):
        if keys:
            raise CheckpointError(
                f"Expected every weight of a {family.name} checkpoint and no other, got {len(keys)} {kind} keys in "
                f"{folder} ({', '.join(sorted(keys)[:4])}{', …' if len(keys) > 4 else ''}); "
                "is this the right config.json?"
            )
    if native.get_text_config().tie_word_embeddings:
        check_tied_head(folder, files)
    check_layers(files, int(native.get_text_config().num_hidden_layers))
    if not family.causal_module:
        set_direction(module, causal=False)
    ready: torch.nn.Module = module.eval()
    return ready


def check_tied_head(folder: Path, files: Mapping[Path, Header]) -> None:
    """A tied head that is stored as well is not read, so it must be what the model will use in its place."""
    from safetensors import safe_open

    stored = {}
    for path, header in files.items():
        for key in {"lm_head.weight", "model.embed_tokens.weight"} & header.keys():
            with safe_open(path, "pt") as file:
                stored[key] = file.get_tensor(key)
    if len(stored) == 2 and not torch.equal(*stored.values()):
        raise CheckpointError(
            f"Expected the output head in {folder} to equal the embedding that config.json says it is tied to, and they "
            "differ; correct tie_word_embeddings, or fetch both again."
        )


def check_layers(files: Mapping[Path, Header], layers: int) -> None:
    """transformers drops the keys of some layer numbers without a word (Glm4Moe: 46 and 92), so they are counted here."""
    for path, header in files.items():
        for key in header:
            number = re.search(r"\.(?:layers|blocks)\.(\d+)\.", key)
            if number and int(number[1]) >= layers:
                raise CheckpointError(
                    f"Expected {layers} layers by config.json, got {key} in {path.name}; is this the right config.json?"
                )


def is_finite(weights: Tensor) -> bool:
    """Whether no number is NaN or infinite: least and largest carry either, and need no memory (isfinite: 3 copies)."""
    if weights.numel() == 0 or not weights.is_floating_point():
        return True
    least, largest = torch.aminmax(unpack(weights))
    return bool(torch.isfinite(least)) and bool(torch.isfinite(largest))


def unpack(weights: Tensor) -> Tensor:
    """The numbers that a tensor of torchao's stands for; any other tensor as it is."""
    plain: Tensor = weights.detach()
    return plain if type(plain) in (Tensor, nn.Parameter) or not plain.is_floating_point() else plain.dequantize()


def set_direction(module: nn.Module, causal: bool) -> None:
    """Give every part of a module that knows a direction of attention this one."""
    module.config.is_causal = causal  # type: ignore[union-attr]
    for part in module.modules():
        if hasattr(part, "is_causal"):
            part.is_causal = causal  # type: ignore[assignment]


def placement(device: Device) -> dict[str, Any]:
    if isinstance(device, dict):
        return {"device_map": device}
    return {} if device is None or str(device) == "cpu" else {"device_map": str(device)}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' loading report and bar off the screen: what matters of it becomes an error of ours."""
    from transformers.utils import logging as theirs

    level, bar = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(level)
        if bar:
            theirs.enable_progress_bar()


@contextmanager
def no_warnings() -> Iterator[None]:
    """torchao, which transformers imports where it is installed, logs every kernel for other machines that it cannot load."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


@cache
def import_transformers() -> None:
    """Import it with the garbage collector at rest.

    Nothing that is imported is garbage, and the collector goes over it again and again: a seventh of the first load.
    """
    if sys.flags.optimize > 1:
        raise CheckpointError(
            "transformers reads docstrings, and Python drops them under -OO or PYTHONOPTIMIZE=2; leave that out, or use -O."
        )
    running = gc.isenabled()
    gc.disable()
    try:
        with no_warnings():
            import transformers.modeling_utils
            import transformers.models.auto.modeling_auto
            import transformers.models.auto.tokenization_auto  # noqa: F401
    finally:
        if running:
            gc.enable()


def packed_by(stored: Any) -> str | None:
    """A short name for the quantization_config of a config."""
    if not stored:
        return None
    values = stored if isinstance(stored, dict) else stored.to_dict()
    bits = next(
        (f" {bits} bit" for bits in (8, 4) if values.get(f"load_in_{bits}bit") or values.get("bits") == bits), ""
    )
    return f"{getattr(values.get('quant_method'), 'value', values.get('quant_method')) or 'unknown'}{bits}"


def quantize(model: Model, scheme: str) -> Model:
    """Pack every linear layer but the output head, in place; embeddings, norms and experts in one tensor stay plain."""
    if model.quantization is not None:
        raise CheckpointError(f"{model.name} is quantised already ({model.quantization}); leave quantization out.")
    with no_warnings():
        from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, MappingType, quantize_
        from torchao.quantization.granularity import PerGroup

    ends: Any = model.module
    head = ends.get_output_embeddings()
    layers = [part for part in model.module.modules() if isinstance(part, nn.Linear) and part is not head]
    group = PerGroup(math.gcd(GROUP, *(part.in_features for part in layers)))
    how = (
        Int8WeightOnlyConfig(set_inductor_config=False)
        if scheme == "int8"
        else IntxWeightOnlyConfig(torch.int4, group, MappingType.ASYMMETRIC)  # type: ignore[attr-defined]
    )
    quantize_(model.module, how, filter_fn=lambda part, name: isinstance(part, nn.Linear) and part is not head)
    # Two packings of one checkpoint are two models.
    both = f"{model.fingerprint}{json.dumps(scheme)}"
    model.quantization, model.fingerprint = scheme, hashlib.sha256(both.encode()).hexdigest()
    return model


# ---- back into a folder


def save(model: Model, folder: str | os.PathLike[str]) -> Path:
    """Write weights, config and tokenizer into a new or empty folder."""
    path = Path(folder).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(
            f"Expected a new or empty folder to save {model.name} to, got {short(str(path))}; name another."
        )
    if model.quantization is not None:
        raise CheckpointError(
            f"Expected plain weights to save, and those of {model.name} are {model.quantization}; load it without quantization."
        )
    module: Any = model.module
    try:
        path.mkdir(parents=True, exist_ok=True)
        with quiet():  # a bar for each shard
            module.save_pretrained(str(path), save_original_format=False)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(str(path))
        config = path / "config.json"
        written = {**json.loads(config.read_text(encoding="utf-8")), **family_fields(model)}
        if str(written.get("model_type", "")).startswith(OWN_TYPE):
            native: Any = type(module.config).__mro__[1]
            written["model_type"] = native.model_type
        config.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{model.name} could not be saved to {short(str(path))} ({describe_error(error)})."
        ) from None
    return path


def family_fields(model: Model) -> dict[str, Any]:
    """What config.json needs beside the native class's own fields."""
    fields = {
        FAMILY: model.family.name,
        "mask_token_id": model.mask_id,
        BLOCK: model.block,
        DECODE: model.checkpoint_defaults,
    }
    return {name: value for name, value in fields.items() if value not in (None, {})}


def keep_native_names(module: Any, model: Model, config: Config) -> None:
    """Make the module's own `save_pretrained` write names that its config describes, and the family into its config.

    Otherwise it would turn the names back into those that the checkpoint had, under a config of another class.
    """
    if model.family.key_mapping:
        module._weight_conversions = None
    for name, value in family_fields(model).items():
        setattr(module.config, name, value)
    if ROTARY in config:
        setattr(module.config, ROTARY, config[ROTARY])
