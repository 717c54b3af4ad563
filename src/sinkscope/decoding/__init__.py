"""Canvas to text: one denoising loop for all families, and left-to-right decoding beside it."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import index
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from sinkscope.decoding.run import Decoded, OnStep, Run, Step
from sinkscope.errors import DecodeError, PromptError
from sinkscope.models.base import Model, check_ids, check_mask
from sinkscope.settings.decode import Decode
from sinkscope.settings.words import LONGEST

__all__ = ["Decode", "Decoded", "Step", "decode", "fitted"]


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

    _check_kinds(model, settings)
    prompt = check_ids(ids, model)
    if prompt.shape[1] + settings.length > model.context:
        raise PromptError(
            f"Expected prompt and answer to fit the {model.context} positions of {model.name}, "
            f"got a prompt of {prompt.shape[1]} and length {settings.length}; shorten one of them."
        )
    mask = _checked_mask(attention_mask, prompt, settings)
    run = Run(history)
    way = continue_text if settings.family == "autoregressive" else denoise
    return run.finish(*way(model, prompt, settings, mask, run, on_step))


def fitted(settings: Decode, model: Model, prompt_length: int, words: dict[str, Any]) -> Decode:
    """Settings with single words changed, and with what the words leave open made to fit them.

    Left-to-right decoding has no steps or blocks, so those words are dropped for it: one call serves all families.
    """
    _check_kinds(model, settings)
    if strange := sorted(set(words) - {field.name for field in fields(Decode)} - {"algorithm"}):
        raise DecodeError(
            f"Expected decode settings such as length, steps, block, temperature or seed, got {', '.join(strange)}."
        )
    words = dict(words)
    if settings.family == "autoregressive":
        words = {name: value for name, value in words.items() if name not in ("steps", "block")}
    if "algorithm" in words:
        return _with_algorithm(settings, model, prompt_length, words)
    length = _length(words.get("length"), settings, model.context - prompt_length)
    if length > LONGEST:
        raise DecodeError(f"Expected length to be at most {LONGEST}, got {length}.")
    block = words.get("block", settings.block)
    if "block" not in words and block is not None:
        # The default block gives way to the length that was asked for.
        block = max(size for size in range(1, min(block, length) + 1) if length % size == 0)
    steps = words.get("steps", settings.steps)
    if "steps" not in words and steps is not None:
        steps = length
    return replace(settings, **{**words, "length": length, "block": block, "steps": steps})


def _check_kinds(model: Any, settings: Any) -> None:
    if not isinstance(settings, Decode):
        raise DecodeError(f"Expected settings as a Decode, such as Decode.llada(length=32), got {settings!r:.60}.")
    if not hasattr(model, "module"):
        raise DecodeError(f"Expected a model as sinkscope.load gives it, got {model!r:.60}.")


def _length(asked: Any, settings: Decode, room: int) -> int:
    """The length that was asked for, or as much of the default as there is room for."""
    if asked is None:
        return min(settings.length, max(room, 1))
    if not isinstance(asked, SupportsIndex) or isinstance(asked, bool) or index(asked) < 1:
        raise DecodeError(f"Expected length to be a whole number of at least 1, got {asked!r}.")
    return index(asked)


def _with_algorithm(settings: Decode, model: Model, prompt_length: int, words: dict[str, Any]) -> Decode:
    from sinkscope.settings.words import DREAM_ALGORITHMS

    algorithm = words.pop("algorithm")
    if settings.family != "dream" or algorithm not in DREAM_ALGORITHMS:
        raise DecodeError(f"Expected one of {', '.join(DREAM_ALGORITHMS)} for a Dream model, got {algorithm!r}.")
    confidence, commit = DREAM_ALGORITHMS[algorithm]
    return fitted(replace(settings, confidence=confidence, commit=commit), model, prompt_length, words)


def _checked_mask(mask: Any, prompt: Tensor, settings: Decode) -> Tensor | None:
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
