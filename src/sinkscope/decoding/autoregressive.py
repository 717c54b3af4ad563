"""Left-to-right decoding with transformers' key-value cache, on the same canvas as the denoising loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from sinkscope.attention.context import COMMITTED, PROMPT, Forward, forward_context
from sinkscope.decoding.choose import choice_of
from sinkscope.decoding.noise import noise_of
from sinkscope.decoding.run import OnStep, Run, Step
from sinkscope.errors import DecodeError
from sinkscope.models.base import Model
from sinkscope.settings import Decode


def continue_text(
    model: Model, prompt: Tensor, settings: Decode, attention_mask: Tensor | None, run: Run, on_step: OnStep | None
) -> tuple[Tensor, list[Tensor]]:
    """prompt [batch, position] → tokens [batch, position + length], and each row's answer; after its end, padding."""
    if not model.causal:
        raise DecodeError(f"{model.name} is a diffusion model; use Decode.{model.defaults.family} or Decode.parallel.")
    batch, width = prompt.shape
    fill = next((token for token in (model.pad_id, model.eos_id) if token is not None), 0)
    blank = torch.full((batch, settings.length), fill, device=prompt.device)
    canvas = torch.cat([prompt, blank], dim=1)
    real = torch.ones_like(canvas, dtype=torch.bool)
    if attention_mask is not None:
        real[:, :width] = attention_mask.bool()
    padded = not bool(real.all())
    positions = model.positions(real.to(torch.int64))
    assert positions is not None
    padding = (~real).sum(1).cpu()
    noise = noise_of(settings, canvas.shape, padding, prompt.device)
    chooser = choice_of(settings)(settings, noise, model.eos_id, model.eot_id)
    ends = torch.tensor(model.eos_ids, device=prompt.device)
    finished = torch.zeros(batch, dtype=torch.bool, device=prompt.device)
    cache = DynamicCache(config=model.config)
    identity = object()
    module: Any = model.module
    run.start(canvas)
    for index, column in enumerate(range(width, canvas.shape[1])):
        start = 0 if index == 0 else column - 1
        labels = torch.full((batch, column - start), PROMPT if index == 0 else COMMITTED, device=prompt.device)
        labels = labels.masked_fill(~real[:, start:column] | (finished.unsqueeze(1) & (index > 0)), -1)
        left = padding if padded else None
        with forward_context(Forward(identity, index, labels, batch, start, left, width, ids=canvas[:, :column])):
            output = module(
                canvas[:, start:column], attention_mask=real[:, :column].to(torch.int64) if padded else None,
                position_ids=positions[:, start:column], past_key_values=cache, use_cache=True, logits_to_keep=1,
            )  # fmt: skip
        where = torch.arange(batch, device=prompt.device) * canvas.shape[1] + column
        ids, sure = chooser.choose(output.logits[:, -1], where)
        run.forwards += 1
        ids = ids.masked_fill(finished, fill)
        canvas = canvas.index_put(
            (torch.arange(batch, device=prompt.device), torch.tensor(column, device=prompt.device)), ids
        )
        committed = torch.zeros_like(canvas, dtype=torch.bool)
        committed[:, column] = ~finished
        confidence = torch.full(canvas.shape, torch.nan, device=canvas.device)
        confidence[:, column] = sure.float().masked_fill(finished, torch.nan)
        step = Step(index, canvas, confidence, committed, (column, column + 1))
        run.note(step)
        if on_step is not None:
            on_step(step)
        finished = finished | torch.isin(ids, ends)
        if bool(finished.all()):
            break
    return canvas, list(canvas[:, width:])
