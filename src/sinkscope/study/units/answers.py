"""Answers to a chunk of problems under one condition."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding import decode
from sinkscope.decoding.canvas import Step
from sinkscope.models.cost import Workload, forwards_of
from sinkscope.study.schema import Study, TaskPlan
from sinkscope.study.units import Grade, Job, ModelInfo, Unit, UnitKind, conditions_for, decoded_units
from sinkscope.study.units.given import apply_condition, encode_batch, model_for


class AnswersKind(UnitKind):
    """Every condition of the study, every task, a chunk of problems at a time."""

    name = "answers"
    order = 10
    unchanged = "tokens"

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        conditions = [] if info.likelihood else conditions_for(study, info)
        return decoded_units("answers", study, info, conditions, study.chunk)

    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        return forwards_of(unit.decoder, unit.last - unit.first, prompt)

    def count_problems(self, study: Study, task: TaskPlan) -> int:
        return task.problems

    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        """Answer a chunk of problems under the unit's condition."""
        model = model_for(study, job.unit)
        ids, mask = encode_batch(model, job.prompts)
        commits: list[tuple[Tensor, Tensor]] = []  # of each step, by row: confidence in what it committed, and how many

        def on_step(step: Step) -> None:
            sure = step.confidence.double().masked_fill(~step.committed, 0.0).nan_to_num(0.0).sum(1).cpu()
            commits.append((sure, step.committed.sum(1).cpu()))
            if step.index == 0:
                taken.begin()

        with apply_condition(study, job.unit, model, [prompt.number for prompt in job.prompts]) as taken:
            done = decode(model, ids, job.unit.decoder, attention_mask=mask, history=False, on_step=on_step)
        total, count = (functools.reduce(torch.add, parts) for parts in zip(*commits, strict=True))
        confidence = (total / count.clamp(min=1)).tolist()
        rows = []
        for prompt, returned, sure in zip(job.prompts, done.returned, confidence, strict=True):
            tokens = returned.cpu()
            text = model.decode_text(tokens)
            rows.append({"problem": prompt.number, "text": text, "tokens": tokens.tolist(), "confidence": sure})
        return {"rows": rows, "effect": taken.effect(), "forwards": done.forwards}

    def grade(self, found: dict[str, Any], right: Grade) -> dict[str, Any]:
        rows = [
            {"problem": row["problem"], "correct": right(row["problem"], row["text"]), **row} for row in found["rows"]
        ]
        return {**found, "rows": rows}
