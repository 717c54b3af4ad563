"""A Model out of its parts, from a folder or (`wrap`) a module in memory; and the self-tests that it must pass."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.attention.patch import is_native
from sinkscope.errors import CheckpointError, DecodeError, UnknownFamilyError
from sinkscope.fields import Allowed, among, maybe, need, whole
from sinkscope.io.reading import reason
from sinkscope.models.base import Model
from sinkscope.models.checkpoint import read_config
from sinkscope.models.family import FAMILIES, UNSUPPORTED, Family, families, has_tokenizer, refuse
from sinkscope.models.weights import is_finite, packed_by, quiet, set_direction, unpacked

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

SAMPLE = 64  # numbers of each parameter that the fingerprint of a module in memory is made of


def described(folder: Path, asked: str) -> tuple[Family, dict[str, Any], PretrainedConfig]:
    """What config.json says: the family that knows it, its plain fields, and the native configuration."""
    config = read_config(folder)
    family = family_of(config, folder)
    refuse(config, family.expects, family.name)
    try:
        with quiet():  # it may warn of a rope that is meant so
            native = family.native_config(config)
    except KeyError as error:
        raise CheckpointError(
            f"config.json of {asked} lacks {error}, which every {family.name} checkpoint has; fetch the file again."
        ) from None
    if family.causal or not family.causal_module:
        native.is_causal = family.causal
    return family, config, native


def family_of(config: dict[str, Any], folder: Path) -> Family:
    named = " ".join(map(str, (config.get("model_type"), config.get("architectures"), *config))).lower()
    unsupported = next((why for word, why in UNSUPPORTED.items() if word in named), None)
    for family in families():
        if unsupported and type(family).__module__.startswith("sinkscope."):  # those of other packages are asked first
            raise CheckpointError(unsupported)
        if family.knows(config, folder):
            return family
    known = ", ".join(FAMILIES)
    raise UnknownFamilyError(
        f"Expected a config.json of a known family ({known}, or a causal model "
        f"that transformers has), got model_type {config.get('model_type')!r}; "
        "write a Family and hand it to sinkscope.models.register (see help(sinkscope.models.Family))."
    )


def tokenizer_in(folder: Path, family: Family) -> PreTrainedTokenizerBase | None:
    if not has_tokenizer(folder):
        return None
    try:
        with quiet():
            return family.load_tokenizer(folder)
    except Exception as error:
        # transformers raises half a dozen types here, from the Rust side too; each means the same to the user.
        raise CheckpointError(
            f"The tokenizer files in {folder} cannot be read ({reason(error)}); "
            "fetch them again, or remove them to load the model for ids only."
        ) from error


def assemble(
    family: Family, module: Any, tokenizer: PreTrainedTokenizerBase | None, name: str, mask_id: int | None, **facts: Any
) -> Model:
    """A Model with the tokens that configuration, tokenizer and family name; facts: further fields of it."""
    config = module.config.get_text_config()
    ends = family.eos_ids(config, tokenizer)
    known = tokenizer.get_vocab() if tokenizer is not None else {}
    eot = known.get(family.end_of_turn) if family.end_of_turn else None
    pad = family.pad_id(config, tokenizer)
    if family.causal and eot is not None and eot not in ends:
        ends = (*ends, eot)
    return Model(
        module=module, tokenizer=tokenizer, family=family.name, name=name, mask_id=mask_id, shift=family.shift,
        causal=family.causal, context=int(config.max_position_embeddings), eos_ids=ends, pad_id=pad, eot_id=eot,
        recipe=family, mode=next(iter(family.modes), None), **facts,
    )  # fmt: skip


def with_preset(model: Model, preset: Any, where: str) -> Model:
    try:
        model.preset = dict(preset or {})
        _ = model.defaults
    except (TypeError, ValueError, DecodeError) as error:
        raise CheckpointError(f"{where} has sinkscope_decode settings that cannot be used: {error}") from None
    return model


def self_tested(model: Model) -> Model:
    """Refuse weights with NaN, a mask token without a row, and a direction of attention that is not the family's."""
    if model.mask_id is not None and not 0 <= model.mask_id < model.vocabulary:
        raise CheckpointError(
            f"Expected the mask token of {model.name} among its {model.vocabulary} tokens, got id {model.mask_id}; "
            "correct mask_token_id in config.json, or pass mask_id=…."
        )
    for key, parameter in model.module.named_parameters():
        if parameter.is_floating_point() and not is_finite(parameter):
            raise CheckpointError(
                f"{model.name} has NaN or infinite numbers in {key}; the checkpoint is damaged: fetch it again."
            )
    later = not model.causal if model.recipe.sees_later is None else model.recipe.sees_later
    if looks_ahead(model) != later:
        expected, came = ("bidirectional", "causal") if later else ("causal", "bidirectional")
        raise CheckpointError(
            f"Expected {expected} attention in {model.name}, and it is {came} with this transformers; "
            "version 5.2 or newer is needed."
        )
    if model.causal or model.block is not None:
        _try_cache(model)
    return model


@torch.inference_mode()
def _try_cache(model: Model) -> None:
    """One forward over a cache, as decoding makes them: its layers are made from fields that no other forward reads."""
    from transformers import DynamicCache

    ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    module: Any = model.module.base_model
    module(ids, past_key_values=DynamicCache(config=model.config), use_cache=True, **model.direction())


def looks_ahead(model: Model) -> bool:
    """Whether a change of the last token moves the logits at position 0, as it must in a diffusion model."""
    ids = torch.arange(4).remainder(model.vocabulary).unsqueeze(0)
    if model.mask_id is not None:
        ids[0, 0] = model.mask_id  # WeDLM's known tokens look back only; masks look ahead in every family
    changed = ids.clone()
    changed[0, -1] = model.vocabulary - 1
    return not torch.equal(model.logits(ids)[0, 0], model.logits(changed)[0, 0])


# ---- a module in memory


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
