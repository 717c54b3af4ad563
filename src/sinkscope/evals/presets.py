"""Decode settings a family and benchmark, as the published evaluations have them; each is printed and overridable."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sinkscope.errors import DecodeError
from sinkscope.settings.decode import Decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sinkscope.models.base import Model

# LLaDA: block 32, 256 tokens for GSM8K and 512 for HumanEval. Dream: its authors' lengths, temperature .1, top-p .9,
# entropy. MMaDA has LLaDA's sampler. LLaDA-1.5: its authors' blocks, end tokens committed last. One commit per step
# everywhere: the paper does not say how many it used.
PRESETS: dict[tuple[str, str], Decode] = {
    ("llada", "gsm8k"): Decode.llada(length=256, block=32, steps=256),
    ("llada", "humaneval"): Decode.llada(length=512, block=32, steps=512),
    ("mmada", "gsm8k"): Decode.mmada(length=256, block=32, steps=256),
    ("mmada", "humaneval"): Decode.mmada(length=512, block=32, steps=512),
    ("dream", "gsm8k"): Decode.dream(
        length=256, steps=256, algorithm="entropy", temperature=0.1, top_p=0.9, top_k=None
    ),
    ("dream", "humaneval"): Decode.dream(
        length=768, steps=768, algorithm="entropy", temperature=0.1, top_p=0.9, top_k=None
    ),
    ("llada-1.5", "gsm8k"): Decode.llada(length=256, block=16, steps=256, late_eos=True),
    ("llada-1.5", "humaneval"): Decode.llada(length=512, block=32, steps=512, late_eos=True),
    ("llama", "gsm8k"): Decode.autoregressive(length=256),
    ("llama", "humaneval"): Decode.autoregressive(length=512),
}


def benchmark_of(task: str) -> str | None:
    """Which benchmark's settings a harness task takes: gsm8k_cot is a form of GSM8K."""
    return next((name for name in ("gsm8k", "humaneval") if task.startswith(name)), None)


def settings_for(
    model: Model, task: str, asked: Mapping[str, Any] | Decode | None = None, longest: int | None = None
) -> Decode:
    """The settings of one task: those asked for, else the preset, else the model's defaults.

    Single words replace single settings of the preset (`{"length": 128}`); length, block and steps are made to fit each
    other and half of the model's context, so that the prompt has room. `longest` is a task's own wish for the length; a
    preset comes before it. Noise is drawn a row, so that an answer does not depend on what else is in its batch.
    """
    if isinstance(asked, Decode):
        return asked
    words = dict(asked or {})
    if strange := sorted(set(words) - {field.name for field in fields(Decode)} - {"algorithm"}):
        raise DecodeError(f"Expected decode settings such as length, steps or block, got {', '.join(strange)}.")
    kind = "llada-1.5" if model.family == "llada" and model.defaults.late_eos else model.family
    found = PRESETS.get((kind, benchmark_of(task) or ""))
    base = found or model.defaults
    room = model.context // 2
    if "length" not in words:
        length = min(base.length if found else longest or base.length, room)
        words["length"] = length - length % (base.block or 1) or length
    words.setdefault("noise", "per_row")
    from sinkscope.decoding import resolve_settings

    return resolve_settings(base, model, 0, words)


def in_full(settings: Decode) -> str:
    """Every setting on one line, defaults too: what was not printed cannot be compared."""
    return ", ".join(f"{name}={value}" for name, value in settings.to_dict().items())
