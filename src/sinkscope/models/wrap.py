"""`wrap`: a transformers model that is loaded already becomes a Model, as it is."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.attention.interface import is_native
from sinkscope.errors import CheckpointError
from sinkscope.fields import Allowed, among, maybe, need, whole
from sinkscope.models.assemble import assemble, self_tested
from sinkscope.models.base import Model
from sinkscope.models.family import Family, families
from sinkscope.models.quantize import packed_by
from sinkscope.models.weights import set_direction, unpacked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLE = 64  # numbers of each parameter that its fingerprint is made of


def wrap(
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None = None,
    family: str | None = None,
    mask_id: int | None = None,
) -> Model:
    """A transformers model in memory, PEFT-wrapped ones too, for everything that takes a model from sk.load.

    Its dtype, device map and quantisation stay; it is put in evaluation mode. family: "llada", "dream", … for a diffusion
    model in a native class, which is made bidirectional; without it the model is autoregressive. mask_id: its mask token,
    where neither its config nor the tokenizer names one.
    """
    need("mask_id", mask_id, maybe(whole(0)), CheckpointError)
    tokenizes = Allowed("a tokenizer of transformers", lambda one: one is None or hasattr(one, "get_vocab"))
    need("tokenizer", tokenizer, tokenizes, CheckpointError)
    module = _module(model)
    kind = _family(module, family, mask_id)
    config = {**module.config.to_dict(), **({} if mask_id is None else {"mask_token_id": mask_id})}
    mask = kind.mask_id(config, tokenizer)
    module.eval()
    if not kind.causal_module:
        set_direction(module, causal=False)
    kind.adapt(module, config)
    name = str(getattr(module.config, "_name_or_path", "") or type(module).__name__)
    made = assemble(
        kind, module, tokenizer, name, mask, fingerprint=_fingerprint(module), block=kind.block(config),
        quantization=packed_by(getattr(module.config, "quantization_config", None)),
    )  # fmt: skip
    return self_tested(made)


def _module(model: Any) -> Any:
    """The transformers module itself: PEFT puts its layers into it, and wraps it."""
    settings = getattr(model, "peft_config", None)
    if settings is not None and hasattr(model, "get_base_model"):
        if any(getattr(one, "is_prompt_learning", False) for one in settings.values()):
            raise CheckpointError(
                "Expected a PEFT adapter of weights, got one that learns prompts, which stand on no position; merge it first."
            )
        model = model.get_base_model()
    if isinstance(model, Model):
        raise CheckpointError(f"{model.name} is a model of sinkscope already; use it as it is.")
    if not isinstance(model, torch.nn.Module) or not is_native(model) or model.get_output_embeddings() is None:  # type: ignore[operator]
        raise CheckpointError(
            f"Expected a language model of one of transformers' own classes, got {type(model).__name__}; "
            "remote code and other modules are not supported: load the checkpoint with sk.load(folder or Hub id)."
        )
    return model


def _family(module: Any, name: str | None, mask_id: int | None) -> Family:
    known = {family.name: family for family in families()}
    if name is None and (mask_id is not None or getattr(module.config, "is_causal", None) is False):
        diffusion = ", ".join(one.name for one in families() if not one.causal)
        raise CheckpointError(
            f"Expected family=… for a diffusion model, which decides how it decodes: one of {diffusion}."
        )
    chosen = "llama" if name is None else name
    need("family", chosen, among(known), CheckpointError)
    if known[chosen].causal and mask_id is not None:
        raise CheckpointError(f"{chosen} is autoregressive and has no mask token; leave mask_id out.")
    return known[chosen]


def _fingerprint(module: torch.nn.Module) -> str:
    """sha256 of every parameter's name, shape and first numbers: cheap at 16 GB, and it changes with the weights."""
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        first = unpacked(parameter).flatten()[:SAMPLE].float().cpu()
        digest.update(f"{name}{tuple(parameter.shape)}{first.tolist()}".encode())
    return digest.hexdigest()
