"""Adapters in PEFT's format: a folder with adapter_config.json becomes its base model with the changes merged in.

W becomes W + scale · B·A, computed in float32. Whole modules and single token rows that an adapter carries are put
in their places. What cannot be merged exactly is refused in one sentence.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sinkscope.errors import CheckpointError
from sinkscope.io.reading import read_object
from sinkscope.models.checkpoint import LARGEST_CONFIG, fingerprint, read_header

if TYPE_CHECKING:
    from sinkscope.models.base import Model

CONFIG, WEIGHTS, NOTES = "adapter_config.json", "adapter_model.safetensors", "sinkscope.json"
PREFIX = "base_model.model."
ENDINGS = r"(.+?)\.(lora_[AB]\.weight|token_adapter\.trainable_tokens_delta|weight|bias)"
# Settings under which the change is more than W + scale · B·A, with the value that leaves it at that.
PLAIN: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None), "use_dora": (False, None), "lora_bias": (False, None), "fan_in_fan_out": (False, None),
    "layer_replication": (None,), "target_parameters": (None, []), "use_qalora": (False, None),
    "use_bdlora": (None, False), "alora_invocation_tokens": (None,), "arrow_config": (None,), "velora_config": (None,),
    "monteclora_config": (None,), "kasa_config": (None,), "megatron_config": (None,),
    "rank_pattern": ({}, None), "alpha_pattern": ({}, None),
    # Other ways to start change the base's own weights too, so B·A alone does not say the whole change.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}  # fmt: skip


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
        named = str(self.config["base_model_name_or_path"])
        beside = self.folder / named
        return str(beside) if not Path(named).is_absolute() and (beside / "config.json").is_file() else named


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def read_adapter(folder: Path, base: str | None = None) -> Adapter:
    """Look the folder through before its base is loaded: that takes a while, and a broken adapter needs none.

    base: in place of the one that it names.
    """
    from safetensors.torch import load_file

    config = read_object(folder / CONFIG, LARGEST_CONFIG, CheckpointError, "fetch it again")
    if base is not None:  # a folder is seen from where the user is
        here = Path(base).expanduser()
        config["base_model_name_or_path"] = str(here.absolute()) if here.exists() else base
    kind = str(config.get("peft_type", "")).upper()
    if kind != "LORA":
        raise CheckpointError(
            f"Expected a LoRA adapter in {folder}, got peft_type {kind or 'none'}; merge it with peft."
        )
    for name, plain in PLAIN.items():
        value = config.get(name, plain[0])
        if not any(value is one or value == one for one in plain):
            raise CheckpointError(
                f"The adapter in {folder} has {name} = {value!r}, which is more than W + scale · B·A and is not "
                "supported; merge it into its base with peft, and load the merged model."
            )
    if not config.get("base_model_name_or_path"):
        raise CheckpointError(f"{folder / CONFIG} names no base_model_name_or_path; write the base's name into it.")
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        came = "only adapter_model.bin, which is pickle and refused" if pickled else "none"
        raise CheckpointError(f"Expected {WEIGHTS} in {folder}, found {came}; save the adapter with peft again.")
    read_header(path)
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(path).items()}
    ours = folder / NOTES
    notes = read_object(ours, LARGEST_CONFIG, CheckpointError, "fetch it again") if ours.is_file() else {}
    return Adapter(folder, config, tensors, notes)


@torch.no_grad()
def merge(model: Model, adapter: Adapter, name: str) -> Model:
    """The base with the adapter in it; the base's module is changed in place."""
    expected = adapter.notes.get("base_fingerprint")
    if expected is not None and expected != model.fingerprint:
        raise CheckpointError(
            f"{name} was made for a base with fingerprint {str(expected)[:12]}, and {adapter.base} here has "
            f"{model.fingerprint[:12]}: other weights; get the base that it was made for."
        )
    known, changed = dict(model.module.named_modules()), _by_module(adapter)
    native = {own: _native(own, model) for own in changed}
    if strange := [own for own, place in native.items() if place not in known]:
        raise CheckpointError(
            f"{name} changes {strange[0]}, which {adapter.base} does not have; the adapter was made for another base."
        )
    _check_complete(model, adapter, list(changed), name)
    for own, held in changed.items():
        _change(model, known[native[own]], adapter.config, own, held)
    own = fingerprint([adapter.folder / WEIGHTS])
    both = f"{model.fingerprint}{own}{json.dumps(adapter.notes, sort_keys=True)}"
    model.fingerprint, model.name = hashlib.sha256(both.encode()).hexdigest(), name
    return model


def _by_module(adapter: Adapter) -> dict[str, dict[str, Tensor]]:
    """The tensors of each module, which is named as the adapter's author had it."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in adapter.tensors.items():
        named = re.fullmatch(ENDINGS, key)
        if named is None:
            raise CheckpointError(
                f"{adapter.folder / WEIGHTS} holds {key}, which is no LoRA weight of a linear layer, saved module or token row; "
                "merge the adapter with peft, and load the merged model."
            )
        found.setdefault(named[1], {})[named[2]] = tensor
    return found


def _check_complete(model: Model, adapter: Adapter, changed: list[str], name: str) -> None:
    """Every target must be there, in all layers unless some are named: an adapter may have been saved by half."""
    targets, layers = adapter.config.get("target_modules"), int(model.config.num_hidden_layers)
    some = adapter.config.get("layers_to_transform") or adapter.config.get("exclude_modules")
    for target in targets if isinstance(targets, list) else ():
        held = [own for own in changed if own == target or own.endswith(f".{target}")]
        numbered = {found[1] for own in held if (found := re.search(r"\.(\d+)\.", own))}
        if not held or (numbered and not some and len(numbered) != layers):
            count = f"{len(numbered)} of {layers} layers" if held else "no layer"
            raise CheckpointError(
                f"{name} names the target {target} in {CONFIG}, and its weights hold it for {count}; "
                "save or fetch the adapter again."
            )


def _native(own: str, model: Model) -> str:
    """The native name of a module that the authors' code calls `own`: by the same table as the weights of its base."""
    for pattern, replacement in model.recipe.key_mapping.items():
        if re.search(pattern, own + "."):
            return re.sub(pattern, replacement, own + ".").removesuffix(".")
    return own


def _change(model: Model, part: nn.Module, config: dict[str, Any], own: str, held: dict[str, Tensor]) -> None:
    """One module: its low-rank change, its saved weights or its trained token rows."""
    rows = held.pop("token_adapter.trainable_tokens_delta", None)
    if rows is not None:
        asked = config.get("trainable_token_indices") or {}
        chosen = asked if isinstance(asked, list) else asked.get(own) or asked.get(own.rpartition(".")[2]) or []
        table = _target(part, "weight", own)
        if rows.shape != (len(chosen), table.shape[1]) or not all(one in range(len(table)) for one in chosen):
            raise CheckpointError(
                f"The adapter's token rows {tuple(rows.shape)} of {own} do not fit trainable_token_indices {chosen} and "
                "the base's table; save or fetch the adapter again."
            )
        table[torch.tensor(chosen, device=table.device)] = rows.to(table.device, table.dtype)
    saved = {key: held.pop(key) for key in ("weight", "bias") if key in held}
    if (saved or held) and not config.get("ensure_weight_tying"):
        _untie(model, part)
    for key, tensor in saved.items():
        target = _target(part, key, own, tuple(tensor.shape))
        target.copy_(tensor.to(target.dtype))
    if held:
        _add_product(part, config, own, held)


def _target(part: nn.Module, key: str, own: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """The base's tensor that is changed, if it has that shape."""
    found = getattr(part, key, None)
    if not isinstance(found, Tensor) or found.shape != (shape or found.shape):
        came = tuple(found.shape) if isinstance(found, Tensor) else None
        raise CheckpointError(
            f"The adapter changes {own}.{key} as a tensor of {shape}, and the base's is {came}; it was made for another "
            "base, or for a vocabulary that grew."
        )
    return found


def _add_product(part: nn.Module, config: dict[str, Any], own: str, held: dict[str, Tensor]) -> None:
    """weight += scale · B·A, in float32."""
    first, second = "lora_A.weight", "lora_B.weight"
    rank, alpha = int(config.get("r", 8)), float(config.get("lora_alpha", 8))
    shapes = {name: tuple(tensor.shape) for name, tensor in held.items()}
    if set(held) != {first, second} or not shapes[first][:1] == shapes[second][1:] == (rank,):
        raise CheckpointError(
            f"Expected {first} and {second} of rank {rank} for {own} by {CONFIG}, got {shapes}; "
            "settings and weights are not of one adapter: save or fetch it again."
        )
    a, b = held[first].float(), held[second].float()
    weight = _target(part, "weight", own, (b.shape[0], a.shape[1]))
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    wide = torch.promote_types(weight.dtype, torch.float32)
    change = (b.to(weight.device, wide) @ a.to(weight.device, wide)) * scale
    weight.copy_((weight.to(wide) + change).to(weight.dtype))


def _untie(model: Model, part: nn.Module) -> None:
    """PEFT changes one of two tied modules alone; merged, they must be two."""
    ends: Any = model.module
    table, head = ends.get_input_embeddings(), ends.get_output_embeddings()
    if head is not None and table.weight is head.weight and (part is table or part is head):
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
        model.config.tie_word_embeddings = False
