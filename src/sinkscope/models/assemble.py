"""A Model out of its parts: config.json and its family, tokenizer, module; and the self-tests that it must pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.errors import CheckpointError, DecodeError, UnknownFamilyError
from sinkscope.io.reading import reason
from sinkscope.models import checkpoint
from sinkscope.models.base import Model
from sinkscope.models.family import FAMILIES, Family, families, has_tokenizer, refuse
from sinkscope.models.weights import is_finite, quiet

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


def described(folder: Path, asked: str) -> tuple[Family, dict[str, Any], PretrainedConfig]:
    """What config.json says: the family that knows it, its plain fields, and the native configuration."""
    config = checkpoint.read_config(folder)
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
    for family in families():
        if family.knows(config, folder):
            return family
    known = ", ".join(family.name for family in FAMILIES if family.tested != "refused")
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
