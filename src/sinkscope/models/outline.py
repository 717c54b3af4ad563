"""`outline`: a model as its config.json describes it, with sizes and settings and without weights."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.errors import TokenizerError
from sinkscope.models import adapters, gguf_file
from sinkscope.models.assemble import assemble, described, tokenizer_in, with_preset
from sinkscope.models.base import Model
from sinkscope.models.boundary import checked_name, one_sentence
from sinkscope.models.family import Family
from sinkscope.models.gguf_header import read_gguf
from sinkscope.models.hub import find_folder
from sinkscope.models.imports import import_transformers
from sinkscope.models.llama import Llama
from sinkscope.models.sizes import empty_module
from sinkscope.models.weights import quiet

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
    named = Path(asked).expanduser()
    folder = (
        named.parent
        if named.name == "config.json" and named.is_file()
        else find_folder(asked, patterns=["config.json"])
    )
    import_transformers()
    if adapters.is_adapter(folder):
        from sinkscope.models.load import converted  # it imports every file here

        adapter = adapters.read_adapter(folder)
        return converted(outline(adapter.base, layers, device, dtype), adapter)  # of another family, perhaps
    packed = folder.suffix == ".gguf"
    family, config, native = _packed(folder) if packed else described(folder, asked)
    if layers is not None:
        native.num_hidden_layers = layers
    module = empty_module(family, native, device).to(dtype).eval()
    tokenizer = None if packed else tokenizer_in(folder, family)
    mask_id = None
    with suppress(TokenizerError):
        mask_id = family.mask_id(config, tokenizer)
    if mask_id is None and not family.causal:
        mask_id = 0  # it does not matter which token it is
    model = assemble(family, module, tokenizer, asked, mask_id, block=family.block(config))
    return with_preset(model, config.get("sinkscope_decode"), f"config.json of {asked}")


def _packed(path: Path) -> tuple[Family, dict[str, Any], PretrainedConfig]:
    """A GGUF file, as `described` has a folder."""
    from transformers import AutoConfig

    found = gguf_file.config_of(read_gguf(path))
    with quiet():
        return Llama(), {}, found or AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
