"""`outline`: a model as its config.json describes it, with sizes and settings and without weights."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.errors import CheckpointError, TokenizerError
from sinkscope.models import adapters, checkpoint, gguf_file, zoo
from sinkscope.models.base import Model
from sinkscope.models.boundary import checked_name, one_sentence
from sinkscope.models.family import Family
from sinkscope.models.gguf_header import read_gguf
from sinkscope.models.hub import fetched, seconds
from sinkscope.models.imports import import_transformers
from sinkscope.models.llama import Llama
from sinkscope.models.sizes import empty_module
from sinkscope.models.weights import first_lines, quiet

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def outline(
    name: str | os.PathLike[str], layers: int | None = None, device: str = "meta", dtype: torch.dtype = torch.bfloat16
) -> Model:
    """A model of random weights, or on the device meta of none, from a zoo name, a folder, a config.json or a Hub id.

    layers: fewer than config.json says, to time one. Of a Hub id nothing but config.json is fetched.
    """
    asked = checked_name(name)
    with one_sentence(asked):
        return _outlined(asked, layers, device, dtype)


def _outlined(asked: str, layers: int | None, device: str, dtype: torch.dtype) -> Model:
    from sinkscope.models.load import _assemble, _tokenizer, _with_preset, converted  # it imports this file, too

    folder = zoo.find(asked) or _folder(asked)
    import_transformers()
    if adapters.is_adapter(folder):
        adapter = adapters.read_adapter(folder)
        return converted(outline(adapter.base, layers, device, dtype), adapter)  # of another family, perhaps
    family, native, config = _described(folder, asked)
    if family.causal or not family.causal_module:
        native.is_causal = family.causal
    if layers is not None:
        native.num_hidden_layers = layers
    try:
        module = empty_module(family, native, device).to(dtype).eval()
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"config.json of {asked} describes no model: {first_lines(error)}; fetch it again."
        ) from None
    tokenizer = None if folder.suffix == ".gguf" else _tokenizer(family, folder)
    mask_id = None
    with suppress(TokenizerError):  # it does not matter which token it is
        mask_id = family.mask_id(config, tokenizer)
    model = _assemble(family, module, tokenizer, asked, 0 if mask_id is None and not family.causal else mask_id, "")
    model.block = family.block(config)
    return _with_preset(model, config.get("sinkscope_decode"), f"config.json of {asked}")


def _described(folder: Path, asked: str) -> tuple[Family, PretrainedConfig, dict[str, Any]]:
    if folder.suffix == ".gguf":
        from transformers import AutoConfig

        found = gguf_file.config_of(read_gguf(folder))
        with quiet():
            return Llama(), found or AutoConfig.from_pretrained(str(folder.parent), gguf_file=folder.name), {}
    from sinkscope.models.load import family_of

    config = checkpoint.read_config(folder)
    family = family_of(config, folder)
    try:
        with quiet():  # it may warn of a rope that is meant so
            return family, family.native_config(config), config
    except KeyError as error:
        raise CheckpointError(
            f"config.json of {asked} lacks {error}, which every {family.name} checkpoint has; fetch the file again."
        ) from None


def _folder(asked: str) -> Path:
    path = Path(asked).expanduser()
    if path.name == "config.json" and path.is_file():
        return path.parent
    if path.exists() or asked.count("/") != 1:
        from sinkscope.models.load import find_folder

        return find_folder(asked)
    from huggingface_hub import hf_hub_download

    def fetch(local_only: bool) -> str:
        hub_id, _, revision = asked.partition("@")
        return str(
            hf_hub_download(
                hub_id, "config.json", revision=revision or None, etag_timeout=seconds(), local_files_only=local_only
            )
        )

    return Path(fetched(asked, fetch)).parent
