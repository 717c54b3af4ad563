"""Canvas to text: one denoising loop for all families, and left-to-right decoding beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.delete import delete_positions
from sinkscope.decoding.fit import check_kinds, resolve_settings
from sinkscope.decoding.run import Decoded, OnStep, Run, Step
from sinkscope.errors import DecodeError, PromptError
from sinkscope.models.base import Model, check_ids, check_mask
from sinkscope.settings.decode import Decode

__all__ = ["Decode", "Decoded", "Step", "checked_mask", "decode", "resolve_settings"]


@torch.inference_mode()
def decode(
    model: Model,
    ids: Tensor,
    settings: Decode,
    attention_mask: Tensor | None = None,
    history: bool = True,
    on_step: OnStep | None = None,
) -> Decoded:
    """Generate from ids [batch, position]; attention_mask has 0 where a prompt is padded: at its left, or (for decoders
    of other layouts than LLaDA's) at its right.
    """
    from sinkscope.decoding.autoregressive import continue_text
    from sinkscope.decoding.diffusion import denoise

    check_kinds(model, settings)
    if settings.family == "native":
        raise DecodeError(
            "These settings are of a generation by transformers' own code, which sinkscope traces and does not decode; "
            "call the module's generate."
        )
    prompt = check_ids(ids, model)
    if prompt.shape[1] + settings.length > model.context:
        raise PromptError(
            f"Expected prompt and answer to fit the {model.context} positions of {model.name}, "
            f"got a prompt of {prompt.shape[1]} and length {settings.length}; shorten one of them."
        )
    mask = checked_mask(attention_mask, prompt, settings)
    prompt, mask = delete_positions(prompt, mask, settings.delete)
    run = Run(history)
    way = continue_text if settings.family == "autoregressive" else denoise
    return run.finish(*way(model, prompt, settings, mask, run, on_step))


def checked_mask(mask: Any, prompt: Tensor, settings: Decode) -> Tensor | None:
    """The mask of a padded batch of prompts in the shape of the ids, None where nothing is padded; or one sentence."""
    if mask is None:
        return None
    width = prompt.shape[1]
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] > width and bool((mask[:, width:] == 1).all()):
        mask = mask[:, :width]  # some decoders want the mask over prompt and canvas; the canvas is always real
    mask = check_mask(mask, prompt)
    real = mask.bool()
    if settings.layout == "answer":
        if bool((real[:, :-1] & ~real[:, 1:]).any()) or not bool(real[:, -1].all()):
            raise PromptError(
                "Expected padding at the left of each prompt only, got a mask with a 0 after a 1, or no real token."
            )
    else:
        begins = real & ~torch.nn.functional.pad(real, (1, 0))[:, :-1]
        if not bool((begins.sum(1) == 1).all()):
            raise PromptError(
                "Expected padding at the ends of each prompt only, got a mask with a 0 between ones, or no real token."
            )
    return None if bool(real.all()) else mask
