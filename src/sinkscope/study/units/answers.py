"""Answers to a chunk of problems under one condition."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding import decode
from sinkscope.decoding.canvas import Step
from sinkscope.decoding.stop_strings import generate_until
from sinkscope.models.cost import Workload, forwards_of
from sinkscope.study.schema import Study, TaskPlan
from sinkscope.study.units import Grade, Job, ModelInfo, Unit, UnitKind, conditions_for, decoded_units
from sinkscope.study.units.given import apply_condition, encode_batch, encode_prompt, model_for


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
        return task.problems or 0

    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        """Answer a chunk of problems under the unit's condition."""
        if any(prompt.ids for prompt in job.prompts):
            return self._answer_up_to_stops(study, job)
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

    def _answer_up_to_stops(self, study: Study, job: Job) -> dict[str, Any]:
        """The same for a benchmark, whose prompts are laid out already, and whose answers end at stop strings."""
        model, settings = model_for(study, job.unit), job.unit.decoder
        prompts = [encode_prompt(model, prompt) for prompt in job.prompts]
        stops = [prompt.stops for prompt in job.prompts]
        repeats = next(task.repeats for task in study.tasks if task.name == job.unit.task)
        with apply_condition(study, job.unit, model, [prompt.number for prompt in job.prompts]) as taken:
            answers = [
                generate_until(model, prompts, replace(settings, seed=settings.seed + nth), stops)
                for nth in range(repeats)
            ]
        rows = []
        for place, prompt in enumerate(job.prompts):
            first = answers[0][place]
            row = {"problem": prompt.number, "text": first.text, "tokens": first.ids, "confidence": None}
            if first.steps is not None:
                row["steps"] = first.steps
            if repeats > 1:
                row["texts"] = [several[place].text for several in answers]
            rows.append(row)
        return {"rows": rows, "effect": taken.effect()}

    def grade(self, found: dict[str, Any], right: Grade) -> dict[str, Any]:
        rows = []
        for row in found["rows"]:
            number, verdict = row["problem"], right(row["problem"], row["text"])
            more = {"verdicts": [right(number, text) for text in row["texts"]]} if "texts" in row else {}
            rows.append({"problem": number, "correct": verdict, **row, **more})
        return {**found, "rows": rows}
