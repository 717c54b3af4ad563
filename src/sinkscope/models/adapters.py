"""Adapters in PEFT's format: a folder with adapter_config.json becomes its base model, into which PEFT merges the changes."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from sinkscope.errors import CheckpointError
from sinkscope.files import read_object
from sinkscope.models.checkpoint import MAX_JSON, as_checkpoint_error, fingerprint
from sinkscope.models.weights import no_warnings
from sinkscope.validation import Text, validate

if TYPE_CHECKING:
    from sinkscope.models.model import Model

CONFIG, WEIGHTS, NOTES = "adapter_config.json", "adapter_model.safetensors", "sinkscope.json"
PREFIX = "base_model.model."
# A stored key: the module as the adapter's author names it, and what of it is changed.
KEY = re.compile(r"^(.+?)(?:\.((?:lora_|token_adapter\.).+|weight|bias))?$")


@dataclass(frozen=True)
class Adapter:
    """An adapter folder as it was read: PEFT's settings, tensors without PEFT's prefix, and our own notes."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """Zoo name, folder or Hub id of the base; a folder may be named as it is seen from the adapter's own."""
        name = str(self.config["base_model_name_or_path"])
        beside = self.folder / name
        return str(beside) if not Path(name).is_absolute() and (beside / "config.json").is_file() else name


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def read_adapter(folder: Path, base: str | None = None) -> Adapter:
    """Read the folder before its base is loaded: that takes a while, and a broken adapter needs none.

    base: in place of the one that it names.
    """
    from safetensors.torch import load_file

    config = read_object(folder / CONFIG, MAX_JSON, CheckpointError, "fetch it again")
    if base is not None:  # a folder is seen from where the user is
        here = Path(base).expanduser()
        config["base_model_name_or_path"] = str(here.absolute()) if here.exists() else base
    for name, kind in (("peft_type", Literal["LORA"]), ("base_model_name_or_path", Text)):
        validate(kind, config.get(name), f"{name} in {folder / CONFIG}", CheckpointError)
    with as_checkpoint_error(str(folder / WEIGHTS)):
        tensors = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    notes_file = folder / NOTES
    notes = read_object(notes_file, MAX_JSON, CheckpointError, "fetch it again") if notes_file.is_file() else {}
    return Adapter(folder, config, tensors, notes)


def merge(model: Model, adapter: Adapter, name: str) -> Model:
    """The base with the adapter in it; the base's module is changed in place."""
    expected = adapter.notes.get("base_fingerprint")
    if expected is not None and expected != model.fingerprint:
        raise CheckpointError(
            f"{name} was made for a base with fingerprint {str(expected)[:12]}, and {adapter.base} here has "
            f"{model.fingerprint[:12]}: other weights; get the base that it was made for."
        )
    changes = [KEY.findall(key)[0] for key in adapter.tensors]
    check_complete(model, adapter, {module for module, _ in changes}, name)
    native = {module: native_name(module, model) for module, _ in changes}
    model.module = merge_with_peft(model, adapter, changes, native, name)
    both = f"{model.fingerprint}{fingerprint([adapter.folder / WEIGHTS])}{json.dumps(adapter.notes, sort_keys=True)}"
    model.fingerprint, model.name = hashlib.sha256(both.encode()).hexdigest(), name
    return model


def check_complete(model: Model, adapter: Adapter, changed: set[str], name: str) -> None:
    """Every target must be there, in all layers unless some are named: an adapter may have been saved by half."""
    targets, layers = adapter.config.get("target_modules"), int(model.config.num_hidden_layers)
    some = adapter.config.get("layers_to_transform") or adapter.config.get("exclude_modules")
    for target in targets if isinstance(targets, list) else ():
        stored = [module for module in changed if module == target or module.endswith(f".{target}")]
        numbers = {number[1] for module in stored if (number := re.search(r"\.(\d+)\.", module))}
        if not stored or (numbers and not some and len(numbers) != layers):
            count = f"{len(numbers)} of {layers} layers" if stored else "no layer"
            raise CheckpointError(
                f"{name} names the target {target} in {CONFIG}, and its weights hold it for {count}; "
                "save or fetch the adapter again."
            )


def native_name(module: str, model: Model) -> str:
    """The native name of a module that the authors' code calls `module`: by the table that renames its base's weights."""
    for pattern, replacement in model.family.key_mapping.items():
        if re.search(pattern, module + "."):
            return re.sub(pattern, replacement, module + ".").removesuffix(".")
    return module


def merge_with_peft(
    model: Model, adapter: Adapter, changes: list[tuple[str, str]], native: dict[str, str], name: str
) -> nn.Module:
    """The module after PEFT has merged every tensor of the adapter; one that has no place is named."""
    with no_warnings():
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    if adapter.config.get("alpha_pattern") and any(module != name for module, name in native.items()):
        raise CheckpointError(f"{name} has an alpha_pattern under the names of other code; merge it with peft.")
    targets = sorted({native[module] for module, change in changes if change.startswith("lora_")})
    whole = sorted({native[module] for module, change in changes if change in ("weight", "bias")} - set(targets))
    rows = [module for module, change in changes if change.startswith("token_adapter.")]
    tokens = adapter.config.get("trainable_token_indices")
    if isinstance(tokens, dict):
        tokens = {native[row]: tokens.get(row) or tokens.get(row.rpartition(".")[2]) for row in rows}
    # Every module by its own native name, so that the settings choose what the weights change, and nothing else.
    settings = {
        **adapter.config, "target_modules": targets, "modules_to_save": whole or None, "trainable_token_indices": tokens,
        "layers_to_transform": None, "layers_pattern": None, "exclude_modules": None, "inference_mode": True,
        "base_model_name_or_path": None,
    }  # fmt: skip
    known = LoraConfig.__dataclass_fields__
    if not adapter.config.get("ensure_weight_tying"):
        untie(model, {*targets, *whole})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied heads and second adapters; what matters of it is checked here
        config = LoraConfig(**{key: value for key, value in settings.items() if key in known})
        wrapped: Any = get_peft_model(model.module, config)
        tensors = {
            f"{PREFIX}{native[module]}.{change}": tensor
            for (module, change), tensor in zip(changes, adapter.tensors.values(), strict=True)
        }
        result: Any = set_peft_model_state_dict(wrapped, tensors)
        missing = missing_keys(wrapped, result.missing_keys)
        for kind, keys in (("lacks", missing), ("holds, beyond what its settings name,", result.unexpected_keys)):
            if keys:
                raise CheckpointError(
                    f"{name} {kind} {keys[0]} and {len(keys) - 1} other keys; save or fetch it again."
                )
        merged: nn.Module = wrapped.merge_and_unload()
    merged.requires_grad_(True)
    ends: Any = merged
    tied = ends.get_output_embeddings().weight is ends.get_input_embeddings().weight
    ends.config.get_text_config().tie_word_embeddings = tied
    return merged.eval()


def missing_keys(wrapped: nn.Module, keys: list[str]) -> list[str]:
    """Of the keys that were not loaded, those of the adapter; tied modules share one tensor, which is stored once."""
    state = wrapped.state_dict(keep_vars=True)
    loaded = {id(state[key]) for key in state.keys() - set(keys)}
    adapted = [key for key in keys if "lora_" in key or "trainable_tokens_delta" in key]
    return [key for key in adapted if id(state[key]) not in loaded]


@torch.no_grad()
def untie(model: Model, changed: set[str]) -> None:
    """PEFT changes one of two tied modules alone; merged, they must be two."""
    ends: Any = model.module
    table, head = ends.get_input_embeddings(), ends.get_output_embeddings()
    parts = [model.module.get_submodule(module) for module in changed if module.endswith(("embed_tokens", "lm_head"))]
    if head is not None and table.weight is head.weight and (table in parts or head in parts):
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
