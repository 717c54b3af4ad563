"""Canvas to text: one denoising loop for all families, and left-to-right decoding beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Decoded, History, OnStep, Step, delete_positions
from sinkscope.decoding.fit import check_kinds, refuse_unused, resolve_settings
from sinkscope.errors import PromptError
from sinkscope.models.base import Model, check_ids, check_mask
from sinkscope.settings.decode import Decode

__all__ = ["Decode", "Decoded", "Step", "checked_mask", "decode", "refuse_unused", "resolve_settings"]


@torch.inference_mode()
def decode(
    model: Model,
    ids: Tensor,
    settings: Decode,
    attention_mask: Tensor | None = None,
    history: bool = True,
    on_step: OnStep | None = None,
) -> Decoded:
    """Generate from ids [batch, position]; attention_mask has 0 where a prompt is padded.

    That is at its left, or (for decoders of other layouts than LLaDA's) at its right.
    """
    from sinkscope.decoding.autoregressive import continue_text
    from sinkscope.decoding.diffusion import denoise
    from sinkscope.decoding.native import generate_natively
    from sinkscope.decoding.speculation import speculate

    check_kinds(model, settings)
    model = model.for_settings(settings)
    prompt = check_ids(ids, model)
    ahead = settings.block or 0 if settings.layout == "ahead" else 0  # a draft may begin before the last token
    if (settings.total_length or prompt.shape[1] + settings.answer_length + ahead) > model.context:
        raise PromptError(
            f"Expected prompt and answer to fit the {model.context} positions of {model.name}, "
            f"got a prompt of {prompt.shape[1]} and length {settings.length}; shorten one of them."
        )
    mask = checked_mask(attention_mask, prompt, settings)
    prompt, mask = delete_positions(prompt, mask, settings.delete)
    run = History(history, on_step)
    ways = {"autoregressive": continue_text, "native": generate_natively, "nemotron": speculate}
    way = denoise if settings.mode == "diffusion" else ways.get(settings.family, denoise)
    return run.finish(*way(model, prompt, settings, mask, run))


def checked_mask(mask: Any, prompt: Tensor, settings: Decode) -> Tensor | None:
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
    left = settings.layout == "answer" or settings.family == "native"
    if not bool((begins == 1).all()) or (left and not bool(real[:, -1].all())):
        raise PromptError(
            f"Expected padding at the {'left' if left else 'ends'} of each prompt only, got a mask with a 0 elsewhere, or "
            "no real token."
        )
    return None if bool(real.all()) else mask
