"""`Model.save`: a checkpoint folder that `sk.load` and transformers both load.

The weights are written under the names of the native transformers class, beside a config.json of that class. What the
family knows beyond it (its own name, the mask token, block length, decode settings) stands in the same config.json.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import CheckpointError
from sinkscope.files import describe_error, short

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sinkscope.models.family import Config
    from sinkscope.models.model import Model

FAMILY = "sinkscope_family"  # in config.json: the family of a folder that `save` wrote
BLOCK = "sinkscope_block"
DECODE = "sinkscope_decode"
OWN_TYPE = "sinkscope_"  # how types begin that transformers does not know
ROTARY = "rope_full_precision"


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
    from sinkscope.models.weights import quiet

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


def saved_config(config: Config) -> PretrainedConfig:
    """The native configuration of a folder that was saved: all sizes are the native class's own."""
    from transformers import AutoConfig

    kept = {field: value for field, value in config.items() if field not in ("model_type", "is_causal")}
    made: PretrainedConfig = AutoConfig.for_model(config["model_type"], **kept)
    return made
