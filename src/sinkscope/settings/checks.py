"""Decode settings that cannot work are refused when they are made, in one sentence."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from sinkscope.errors import DecodeError
from sinkscope.fields import check_fields
from sinkscope.settings.choices import CACHES, COMMITS, READERS, SparseCache
from sinkscope.viewers import view

if TYPE_CHECKING:
    from sinkscope.settings.decode import Decode


def check(settings: Decode) -> None:
    """Every value alone, then whether it has a meaning here, then sizes, then what does not go together."""
    if settings.commit not in COMMITS:
        view("decode.commits", settings)  # a rule that is a file in decoding/commit adds its name when it is read
    check_fields(settings, DecodeError)
    _check_used(settings)
    if settings.layout == "answer":
        _check_sizes(settings)
    _check_combination(settings)


def _check_used(settings: Decode) -> None:
    for field in fields(settings):
        families = field.metadata.get("only", (settings.family,))
        if settings.family not in families and getattr(settings, field.name) != field.default:
            raise DecodeError(
                f"{field.name} has no effect in {settings.family} decoding, only in {', '.join(families)}; leave it out."
            )
    if settings.guidance_keep and not settings.guidance:
        raise DecodeError("guidance_keep has no effect without guidance; give guidance above 0, or leave it out.")


def _check_sizes(settings: Decode) -> None:
    length, block, steps = settings.length, settings.block, settings.steps
    if block is not None and length % block:
        near = next(size for away in range(block) for size in (block - away, block + away) if length % size == 0)
        raise DecodeError(
            f"Expected a length that blocks divide, got length {length} and block {block}; try length "
            f"{length // block * block or block} or block {near}."
        )
    if steps is not None and steps % settings.blocks:
        raise DecodeError(
            f"Expected steps that the {settings.blocks} blocks share evenly, got {steps}; "
            f"try {max(steps // settings.blocks, 1) * settings.blocks}."
        )
    if steps is not None and steps > length and settings.commit == "quota":
        raise DecodeError(
            f"Expected at most as many steps as tokens, got {steps} steps for length {length}: "
            "some steps would commit nothing; use fewer steps."
        )


def _caches(settings: Decode) -> list[str | None]:
    """The caches that go with the settings."""
    if settings.family == "native" or settings.layout == "ahead" or not settings.causal_context:
        return ["exact"]
    if settings.layout == "aligned":
        return [None]
    if settings.block_causal:
        return [None, "exact"]
    whole = [] if settings.commit in ("origin", "schedule", "next", "p2") else [*CACHES]
    return [None, *whole, *(["a sparse cache"] if settings.layout == "answer" and settings.commit != "next" else [])]


def _check_combination(settings: Decode) -> None:
    cache = "a sparse cache" if isinstance(settings.cache, SparseCache) else settings.cache
    if settings.guidance > 0 and cache in (*CACHES, "a sparse cache"):
        raise DecodeError("Guidance and a cache were both asked for, and no published decoder has both; drop one.")
    if cache not in (known := _caches(settings)):
        raise DecodeError(
            f"Expected a cache that goes with these {settings.family} settings ({', '.join(map(str, known))}), got {cache}."
        )
    if settings.end_think_id is None and settings.max_thinking_tokens is not None:
        raise DecodeError("max_thinking_tokens needs end_think_id, the token that is written then; give it.")
    if settings.guidance > 0 and (settings.block_causal or settings.family == "rnd1") and settings.family != "bd3lm":
        raise DecodeError(f"Guidance is no part of {settings.family} decoding; leave it out.")
    for name, rules in READERS.items():
        given = getattr(settings, name)
        if given is not None and settings.commit not in (*rules, "continued", "accepted"):  # which may do without
            raise DecodeError(
                f"Expected {name} with a commit rule that reads it ({', '.join(rules)}), got {name}={given} with "
                f"commit={settings.commit!r}; leave it out, or choose such a rule."
            )
        if given is None and settings.commit in rules:
            raise DecodeError(f"Expected {name}=… with commit={settings.commit!r}, which reads it, got none; give one.")
