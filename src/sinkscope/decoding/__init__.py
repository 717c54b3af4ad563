"""Canvas to text: one denoising loop for all families, left-to-right decoding beside it, and settings made to fit a model."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.aliases import rename_settings
from sinkscope.decoding.canvas import Decoded, History, OnStep, Step, delete_positions
from sinkscope.errors import DecodeError, PromptError
from sinkscope.fields import allowed_fields, need
from sinkscope.models.model import Model, check_ids, check_mask
from sinkscope.settings.choices import dream_algorithm
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


def resolve_settings(settings: Decode, model: Model, prompt_length: int, words: dict[str, Any]) -> Decode:
    """Settings with single words changed, and with what the words leave open made to fit them.

    Left-to-right decoding has no steps or blocks, and editing takes as many steps as it needs. Those words are
    dropped there, as `recompute` is in a diffusion model without a cache: one call serves all families. Their values are
    checked all the same.
    """
    check_kinds(model, settings)
    words = rename_settings(words, DecodeError)
    if strange := sorted(set(words) - {field.name for field in fields(Decode)} - {"algorithm"}):
        raise DecodeError(
            f"Expected decode settings such as length, steps, block, temperature or seed, got {', '.join(strange)}."
        )
    allowed = allowed_fields(Decode)
    for name in sorted(set(words) & set(allowed) - {"commit"}):
        if words[name] is not None:
            need(name, words[name], allowed[name], DecodeError)
    words = _used(settings, words)
    if "algorithm" in words:
        if settings.family != "dream":
            raise DecodeError(f"algorithm has no effect in {settings.family} decoding, only in Dream's; leave it out.")
        settings = replace(settings, **dream_algorithm(words.pop("algorithm")))
    length = words.get("length") or min(settings.length, max(model.context - prompt_length, 1))  # as there is room for
    if settings.layout == "total" and "length" in words:
        words = {"total_length": None, "steps": length, **words}
    return replace(settings, **{**words, "length": length, **_sizes(settings, length, words)})


def _used(settings: Decode, words: dict[str, Any]) -> dict[str, Any]:
    """The words without those that have no part in this way of decoding."""
    unused: set[str] = set()
    if (
        settings.family == "native" or settings.layout == "total"
    ):  # a canvas has the checkpoint's length, or is one block
        unused |= {"block"}
    if settings.family == "autoregressive":
        unused |= {"steps", "block"}
    elif words.get("cache", settings.cache) is None:  # every denoising step computes all rows again
        unused |= {"recompute"}
    if settings.steps is None and settings.block_causal:  # as many as the commit rule needs
        unused |= {"steps"}
    if settings.commit == "continued" and words.get("commit") == "threshold":  # it commits by a threshold, too
        unused |= {"commit"}
    return {name: value for name, value in words.items() if name not in unused}


def refuse_unused(settings: Decode, model: Model, words: dict[str, Any]) -> None:
    """Steps and blocks that decoding from left to right would drop."""
    words = rename_settings(words, DecodeError)
    unused = [name for name in ("steps", "block") if words.get(name) is not None]
    if settings.family == "autoregressive" and unused:
        raise DecodeError(
            f"{model.name} writes left to right, where {' and '.join(unused)} would have no effect; leave out what has none."
        )


def _sizes(settings: Decode, length: int, words: dict[str, Any]) -> dict[str, Any]:
    """Block and steps: those that are not asked for give way to the length."""
    if settings.family == "native" or settings.layout == "total":
        return {}
    if settings.layout != "answer":
        words = {name: value for name, value in words.items() if value is not None}
    block, steps = words.get("block", settings.block), words.get("steps")
    if "block" not in words and block is not None:
        if settings.layout == "answer":  # where blocks divide the length
            block = max(size for size in range(1, min(block, length) + 1) if length % size == 0)
        elif settings.layout == "rows":
            block = min(block, length)
    if settings.steps is not None and settings.layout == "grid":
        most = block or length  # steps are counted per block there, and more than its tokens have nothing to do
        return {"block": block, "steps": most if steps is None else min(steps, most)}
    if settings.steps is not None and "steps" not in words:
        steps = length
    return {"block": block, "steps": steps}


def check_kinds(model: Any, settings: Any) -> None:
    """Refuse what is no model and what are no settings."""
    if not isinstance(settings, Decode):
        raise DecodeError(f"Expected settings as a Decode, such as Decode.llada(length=32), got {settings!r:.60}.")
    if not hasattr(model, "module"):
        raise DecodeError(f"Expected a model as sinkscope.load gives it, got {model!r:.60}.")
