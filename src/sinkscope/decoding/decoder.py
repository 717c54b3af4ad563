"""Canvas to text: prompts and settings made ready for a model, and its sampler run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Decoded, DecodeRun, OnStep, delete_positions
from sinkscope.decoding.settings import Decode, check_setting, setting_names
from sinkscope.errors import DecodeError, PromptError
from sinkscope.models.model import Model, check_ids, check_mask
from sinkscope.validation import rename_settings


@torch.inference_mode()
def decode(
    model: Model,
    ids: Tensor,
    settings: Decode,
    attention_mask: Tensor | None = None,
    history: bool = True,
    on_step: OnStep | None = None,
) -> Decoded:
    """Generate answers for a batch of token ids.

    Args:
        model: Model from `load` or `wrap`.
        ids: Token ids of the prompts [batch, position].
        settings: Decode settings.
        attention_mask: Attention mask [batch, position], 0 at padding. Prompts are padded at their left, or at either
            end for samplers with another layout than LLaDA's.
        history: Whether the canvas before each forward and the final canvas are kept.
        on_step: Function that is called with each denoising step (`Step`).

    Returns:
        Tokens [batch, position], the answers, the number of forwards and, with `history`, the canvases.

    Raises:
        PromptError: If prompt and answer exceed the model's context, or the attention mask is malformed.
        DecodeError: If the settings do not fit the model.
    """
    model, prompt, mask = prepare(model, ids, settings, attention_mask)
    run = DecodeRun(model, prompt, mask, settings, history, on_step)
    return run.finish(*settings.generate(run))


def prepare(
    model: Model, ids: Tensor, settings: Decode, attention_mask: Tensor | None
) -> tuple[Model, Tensor, Tensor | None]:
    """The model in the mode of the settings, and its prompt and mask without padding masks of one and deleted positions."""
    check_kinds(model, settings)
    model = model.for_settings(settings)
    prompt = check_ids(ids, model)
    if prompt.shape[1] + settings.answer_length + settings.room > model.context:
        raise PromptError(
            f"Expected prompt and answer to fit the {model.context} positions of {model.name}, "
            f"got a prompt of {prompt.shape[1]} and length {settings.length}; shorten one of them."
        )
    mask = resolve_mask(attention_mask, prompt, settings)
    return model, *delete_positions(prompt, mask, settings.delete)


def resolve_mask(mask: Any, prompt: Tensor, settings: Decode) -> Tensor | None:
    """The mask of a padded batch of prompts in the shape of the ids, None where nothing is padded; or one sentence."""
    if mask is None:
        return None
    rows, width = prompt.shape
    whole = (rows, width + settings.answer_length)
    if isinstance(mask, Tensor) and mask.shape == whole and bool((mask[:, width:] == 1).all()):
        mask = mask[:, :width]  # some decoders want the mask over prompt and canvas; the canvas is always real
    mask = check_mask(mask, prompt)
    real = mask.bool()
    begins = (real & ~torch.nn.functional.pad(real, (1, 0))[:, :-1]).sum(1)
    left = settings.pads_left
    if not bool((begins == 1).all()) or (left and not bool(real[:, -1].all())):
        raise PromptError(
            f"Expected padding at the {'left' if left else 'ends'} of each prompt only, got a mask with a 0 elsewhere, or "
            "no real token."
        )
    return None if bool(real.all()) else mask


def resolve_settings(settings: Decode, model: Model, prompt_length: int, words: dict[str, Any]) -> Decode:
    """Settings with single words changed, and with what the words leave open made to fit them.

    Left-to-right decoding has no steps or blocks, and editing takes as many steps as it needs. Those words are
    dropped there, as `recompute` is in a diffusion model without a cache: one call serves all families. Their values are
    checked all the same.
    """
    check_kinds(model, settings)
    words = rename_settings(words, DecodeError)
    if unknown := sorted(set(words) - setting_names()):
        raise DecodeError(
            f"Expected decode settings such as length, steps, block, temperature or seed, got {', '.join(unknown)}."
        )
    for name in sorted(words):
        if words[name] is not None:
            check_setting(name, words[name], settings)
    words = drop_unused(settings, words)
    length = words.get("length") or min(settings.length, max(model.context - prompt_length, 1))  # as there is room for
    return settings.changed({**words, **settings.fit(length, words)})


def drop_unused(settings: Decode, words: dict[str, Any]) -> dict[str, Any]:
    """The words without those that have no part in this way of decoding."""
    unused = set(settings.unused)
    if settings.left_to_right:
        unused |= {"steps", "block", "commit", "threshold", "factor"}
    elif words.get("cache", settings.cache) is None:  # every denoising step computes all rows again
        unused |= {"recompute"}
    return {name: value for name, value in words.items() if name not in unused}


def refuse_unused(settings: Decode, model: Model, words: dict[str, Any]) -> None:
    """Steps and blocks that decoding from left to right would drop."""
    words = rename_settings(words, DecodeError)
    unused = [name for name in ("steps", "block") if words.get(name) is not None]
    if settings.left_to_right and unused:
        raise DecodeError(
            f"{model.name} writes left to right, where {' and '.join(unused)} would have no effect; leave out what has none."
        )


def check_kinds(model: Any, settings: Any) -> None:
    """Refuse what is no model and what are no settings."""
    if not isinstance(settings, Decode):
        raise DecodeError(f"Expected settings as a Decode, such as Decode.llada(length=32), got {settings!r:.60}.")
    if not hasattr(model, "module"):
        raise DecodeError(f"Expected a model as sinkscope.load gives it, got {model!r:.60}.")
