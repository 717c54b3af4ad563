"""Left-to-right decoding on the same canvas as the denoising loop: with a key-value cache, or all rows at every step."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.attention.forward import COMMITTED, PROMPT, Forward, forward_context
from sinkscope.attention.patch import grouped_single_queries
from sinkscope.decoding.canvas import DecodeRun, Step
from sinkscope.decoding.choose import CHOICES, noise_of
from sinkscope.decoding.settings import Choice, Decode, Stop, sampler
from sinkscope.errors import DecodeError
from sinkscope.validation import Count, NonNegative, Share, Truth


@sampler("autoregressive")
class Autoregressive(Decode):
    """One token per step, left to right, with a key-value cache.

    recompute=True keeps no cache: every step computes all rows again, the protocol of a diffusion model. Without an
    intervention both write the same tokens (to rounding); under one, rows of the prompt are computed under it too.
    stop="never" writes all of length, end-of-text or not.
    """

    choice: ClassVar[Choice] = "draw"
    left_to_right: ClassVar[bool] = True

    temperature: NonNegative = 0.0
    top_p: Share | None = None
    top_k: Count | None = None
    recompute: Truth = False
    _: KW_ONLY
    stop: Stop = "eos"

    def generate(self, run: DecodeRun) -> tuple[Tensor, list[Tensor]]:
        with grouped_single_queries(run.model.module):
            canvas, _ = continue_text(run, recompute=self.recompute)
        return canvas, list(canvas[:, run.prompt.shape[1] :])


def continue_text(
    run: DecodeRun, recompute: bool = False, thinking: tuple[int | None, int | None] = (None, None)
) -> tuple[Tensor, int]:
    """Tokens [batch, position + length], after a row's end padding; and the columns reached.

    thinking: after so many tokens without it this marker is written.
    """
    model, prompt, settings, attention_mask = run.model, run.prompt, run.settings, run.attention_mask
    if not model.causal:
        raise DecodeError(f"{model.name} is a diffusion model; use Decode.{model.defaults.sampler} or Decode.parallel.")
    from transformers import DynamicCache

    batch, width = prompt.shape
    blank = torch.full((batch, settings.length), model.fill_id, device=prompt.device)
    canvas = torch.cat([prompt, blank], dim=1)
    real = torch.ones_like(canvas, dtype=torch.bool)
    if attention_mask is not None:
        real[:, :width] = attention_mask.bool()
    padded = not bool(real.all())
    positions = model.positions(real.to(torch.int64))
    assert positions is not None
    padding = (~real).sum(1).cpu()
    noise = noise_of(settings, canvas.shape, padding)
    chooser = CHOICES[settings.choice](settings, noise, model.eos_id, model.eot_id)
    named = model.eos_ids if settings.eos_id is None else (settings.eos_id,)
    ends = torch.tensor(() if settings.stop == "never" else named, dtype=torch.int64, device=prompt.device)
    finished = torch.zeros(batch, dtype=torch.bool, device=prompt.device)
    cache = None if recompute else DynamicCache(config=model.config)
    identity = object()
    module: Any = model.module
    for index, column in enumerate(range(width, canvas.shape[1])):
        start = 0 if index == 0 or recompute else column - 1
        labels = torch.full((batch, column - start), COMMITTED, device=prompt.device)
        labels[:, : max(width - start, 0)] = PROMPT
        labels = labels.masked_fill(~real[:, start:column] | (finished.unsqueeze(1) & (index > 0)), -1)
        left = padding if padded else None
        run.note(canvas)
        # The family's own rows; one row behind a cache sees everything.
        own = model.family.visible(model, canvas[:, :column], real[:, :column]) if start == 0 else None
        forward = Forward(
            identity, index, labels, batch, start, left, width, ids=canvas[:, :column], causal=own is None,
            visible=None if own is None else own[:, 0], most=settings.most_steps,
        )  # fmt: skip
        mask = real[:, :column].to(torch.int64) if padded else None
        with forward_context(forward):
            output = module(
                canvas[:, start:column], attention_mask=mask if own is None else own,
                position_ids=positions[:, start:column], past_key_values=cache, use_cache=cache is not None,
                logits_to_keep=1,
            )  # fmt: skip
        where = torch.arange(batch, device=prompt.device) * canvas.shape[1] + column
        ids, sure = chooser.choose(output.logits[:, -1], where)
        run.forwards += 1
        ids = end_thinking(ids, canvas[:, width:column], *thinking)
        ids = ids.masked_fill(finished, model.fill_id)
        canvas = canvas.index_put(
            (torch.arange(batch, device=prompt.device), torch.tensor(column, device=prompt.device)), ids
        )
        committed = torch.zeros_like(canvas, dtype=torch.bool)
        committed[:, column] = ~finished
        confidence = torch.full(canvas.shape, torch.nan, device=canvas.device)
        confidence[:, column] = sure.float().masked_fill(finished, torch.nan)
        run.tell(Step(index, canvas, confidence, committed, (column, column + 1)))
        over = torch.isin(ids, ends)
        # Nemotron's own rule (batch_eos): rows go on until all of them write end-of-text at once.
        finished = finished | (over.all() if settings.stop == "batch_eos" else over)
        if bool(finished.all()):
            break
    run.note(canvas)
    return canvas, column + 1


def end_thinking(ids: Tensor, written: Tensor, most: int | None, marker: int | None) -> Tensor:
    """The next ids [row], or the marker that ends thinking in rows [row, position] that go on without it for too long."""
    if most is None or marker is None or written.shape[1] < most:
        return ids
    return ids.masked_fill(~written.eq(marker).any(1), marker)
