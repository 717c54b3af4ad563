"""How far an intervention moves the logits at the commits of the unmasked run: KL divergence on the same canvases.

Two free runs soon have different canvases, whose logits say little about the intervention. Here the intervened model is
led along the unmasked run's path: before each step it sees the canvas that the unmasked model saw, and what it remembers
of the step before (which keys were sinks) is of that path too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.context import COMMITTED, MASKED, PROMPT, Forward, forward_context
from sinkscope.decoding import Step, decode
from sinkscope.decoding.cache import Forwards
from sinkscope.evals.scoring import log_probabilities, read_spans
from sinkscope.models.base import Model
from sinkscope.settings.decode import Decode


@torch.inference_mode()
def divergences(model: Model, intervention: Any, prompts: list[list[int]], settings: Decode) -> list[dict[str, Any]]:
    """Per prompt KL(unmasked ‖ intervened) in nats, averaged over the commits, how often the likeliest token is another,
    and the number of commits; None where decoding has no canvas of its own (guidance, caches, block-causal models)."""
    if not model.causal and (settings.guidance or settings.cache or settings.layout != "answer"):
        return [{"kl": None, "flipped": None, "commits": 0} for _ in prompts]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums depend on the number of threads, and workers elsewhere have one
    try:
        return [_divergence(model, intervention, prompt, settings) for prompt in prompts]
    finally:
        torch.set_num_threads(threads)


def _divergence(model: Model, intervention: Any, prompt: list[int], settings: Decode) -> dict[str, Any]:
    from sinkscope.evals.batches import intervened

    ids = torch.tensor([prompt], device=model.device)
    steps: list[Step] = []
    done = decode(model, ids, settings, history=True, on_step=steps.append)
    assert done.history is not None
    canvases = done.history[: len(steps), 0].to(model.device)  # [step, position]
    commits = torch.stack([step.committed[0] for step in steps])  # bool [step, position]
    before = _path(model, canvases, commits, len(prompt), steps)
    with intervened(model, intervention):
        after = _path(model, canvases, commits, len(prompt), steps)
    gap = torch.where(before.isfinite(), before.exp() * (before - after), 0.0).sum(-1)
    flipped = before.argmax(-1) != after.argmax(-1)
    return {"kl": float(gap.double().mean()), "flipped": float(flipped.double().mean()), "commits": len(before)}


def _path(model: Model, canvases: Tensor, commits: Tensor, width: int, steps: list[Step]) -> Tensor:
    """Log-probabilities [commit, vocab], one forward of the whole canvas per step; an autoregressive model reads on."""
    if model.causal:
        stops = range(width, width + len(canvases))
        return torch.cat([scores[0, -1:] for scores in read_spans(model, canvases[-1:], stops)])
    rows, run = [], object()
    for index, (canvas, committed) in enumerate(zip(canvases, commits, strict=True)):
        labels = torch.full_like(canvas, COMMITTED).masked_fill(canvas.eq(model.mask_id or 0), MASKED)
        labels[:width] = PROMPT
        with forward_context(Forward(run, index, labels[None], 1, 0, None, width, ids=canvas[None])):
            hidden = Forwards(model, None, None)(canvas[None], steps[index].block)[0]
        rows.append(log_probabilities(model, hidden[committed.nonzero().squeeze(-1) - int(model.shift)]))
    return torch.cat(rows)
