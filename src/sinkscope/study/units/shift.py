"""How far an intervention moves the logits, whether or not it makes answers wrong.

They are compared at the commits of the unmasked run: KL divergence on the same canvases. Two free runs soon have different
canvases, whose logits say little about the intervention. Here the intervened model is led along the unmasked run's path:
before each step it sees the canvas that the unmasked model saw. What it remembers of the step before (which keys were
sinks) is of that path too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding import Step, decode
from sinkscope.decoding.cost import Workload, forwards_of
from sinkscope.decoding.likelihood import canvas_hidden, log_probabilities, read_spans
from sinkscope.decoding.settings import Decode
from sinkscope.models.model import Model
from sinkscope.study.schema import Study, TaskPlan
from sinkscope.study.units import Job, ModelInfo, Unit, UnitKind, conditions_for, decoded_units
from sinkscope.study.units.worker import apply_condition, encode_prompt, model_for
from sinkscope.tracing.trace import single_threaded

Intervene = Callable[[], AbstractContextManager[Any]]


class ShiftKind(UnitKind):
    """The first problems of every task, under every condition that changes attention."""

    name = "shift"
    order = 35

    def count_problems(self, study: Study, task: TaskPlan) -> int:
        return task.limit(study.shift)

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        if not study.shift or not info.answers:
            return []
        changes = [one for one in conditions_for(study, info) if one.name not in ("none", "noop") and not one.decode]
        units = decoded_units("shift", study, info, changes, 1, study.shift)
        return sorted(units, key=lambda unit: (unit.setting, unit.task, unit.first))  # a problem at a time

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        found = forwards_of(unit.decoder, 1, prompt)
        return [replace(part, forwards=part.forwards) for part in found]

    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        model, rows = model_for(study, job.unit), []
        for prompt in job.prompts:
            change = partial(apply_condition, study, job.unit, model, [prompt.number])
            found = measure_divergence(model, change, encode_prompt(model, prompt), job.unit.decoder)
            rows.append({"problem": prompt.number, **found})
        return {"rows": rows}


@dataclass(frozen=True)
class UnmaskedPath:
    """A generation without intervention: the canvas before each step, what each step committed, and the logits there."""

    canvases: Tensor  # [step, position]
    commits: Tensor  # bool [step, position]
    scores: Tensor  # log-probabilities [commit, vocab]


_last: dict[object, UnmaskedPath] = {}  # all conditions of a problem follow the same path


def unmasked_path(model: Model, prompt: tuple[int, ...], settings: Decode) -> UnmaskedPath:
    """Made once for all conditions that follow it."""
    key = (id(model), model.fingerprint, prompt, settings)
    if key not in _last:
        made = make_path(model, prompt, settings)
        _last.clear()
        _last[key] = made
    return _last[key]


@single_threaded  # sums depend on the number of threads, and workers elsewhere have one
@torch.inference_mode()
def make_path(model: Model, prompt: tuple[int, ...], settings: Decode) -> UnmaskedPath:
    steps: list[Step] = []
    ids = torch.tensor([prompt], device=model.device)
    done = decode(model, ids, settings, history=True, on_step=steps.append)
    assert done.history is not None
    canvases = done.history[: len(steps), 0].to(model.device)
    commits = torch.stack([step.committed[0] for step in steps])
    return UnmaskedPath(canvases, commits, _path(model, canvases, commits, len(prompt)))


@single_threaded
@torch.inference_mode()
def measure_divergence(model: Model, change: Intervene, ids: Tensor, settings: Decode) -> dict[str, Any]:
    """KL(unmasked ‖ intervened) in nats over the commits, how often the likeliest token differs, and commits.

    ids [1, position]; change: a context in which the intervention is in force. None where decoding has no canvas of its own
    (guidance, caches, block-causal models).
    """
    if not model.causal and (settings.guidance or settings.cache or settings.layout != "answer"):
        return {"kl": None, "flipped": None, "commits": 0}
    plain = unmasked_path(model, tuple(ids[0].tolist()), settings)
    with change():
        after = _path(model, plain.canvases, plain.commits, ids.shape[1])
    before = plain.scores
    gap = torch.where(before.isfinite(), before.exp() * (before - after), 0.0).sum(-1)
    flipped = before.argmax(-1) != after.argmax(-1)
    return {"kl": float(gap.double().mean()), "flipped": float(flipped.double().mean()), "commits": len(before)}


def _path(model: Model, canvases: Tensor, commits: Tensor, width: int) -> Tensor:
    """Log-probabilities [commit, vocab], one forward of the whole canvas per step; an autoregressive model reads on."""
    if model.causal:
        stops = range(width, width + len(canvases))
        return torch.cat([scores[0, -1:] for scores in read_spans(model, canvases[-1:], stops)])
    rows, run = [], object()
    for index, (canvas, committed) in enumerate(zip(canvases, commits, strict=True)):
        hidden = canvas_hidden(model, canvas[None], width, run, index)[0]
        rows.append(log_probabilities(model, hidden[committed.nonzero().squeeze(-1) - int(model.shift)]))
    return torch.cat(rows)
