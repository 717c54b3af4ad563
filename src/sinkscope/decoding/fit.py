"""Single words on top of a model's own settings, and what the words leave open made to fit them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from sinkscope.aliases import DECODE, translated
from sinkscope.errors import DecodeError
from sinkscope.fields import allowed_fields, need
from sinkscope.models.base import Model
from sinkscope.settings import Decode
from sinkscope.settings.choices import dream_algorithm


def resolve_settings(settings: Decode, model: Model, prompt_length: int, words: dict[str, Any]) -> Decode:
    """Settings with single words changed, and with what the words leave open made to fit them.

    Left-to-right decoding has no steps or blocks, and editing takes as many steps as it needs. Those words are
    dropped there, as `recompute` is in a diffusion model without a cache: one call serves all families. Their values are
    checked all the same.
    """
    check_kinds(model, settings)
    words = translated(words, DECODE, DecodeError, settings.family)
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
    words = translated(words, DECODE, DecodeError, settings.family)
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
