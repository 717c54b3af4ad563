"""Answers to a chunk of problems under one condition."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from sinkscope.decoding import decode
from sinkscope.decoding.canvas import Step
from sinkscope.decoding.cost import Workload, forwards_of
from sinkscope.decoding.stop_strings import generate_until
from sinkscope.results import accuracy
from sinkscope.study.schema import Study, TaskPlan
from sinkscope.study.units import Grade, Job, Load, ModelInfo, Rows, Unit, UnitKind, conditions_for, decoded_units
from sinkscope.study.units.worker import apply_condition, encode_batch, encode_prompt, model_for

COLUMNS: dict[str, Any] = {
    "kind": pl.String, "model": pl.String, "setting": pl.String, "condition": pl.String, "name": pl.String, "k": pl.Int64,
    "rank": pl.String, "rows": pl.String, "match": pl.String, "task": pl.String, "problem": pl.Int64, "correct": pl.Boolean,
    "text": pl.String, "tokens": pl.List(pl.Int64), "confidence": pl.Float64, "value": pl.Float64,
}  # fmt: skip


class AnswersKind(UnitKind):
    """Every condition of the study, every task, a chunk of problems at a time."""

    name = "answers"
    order = 10
    unchanged = "tokens"

    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        conditions = conditions_for(study, info) if info.answers else []
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
        cost = {} if done.cache is None else {"cache": done.cache.to_dict()}
        return {"rows": rows, "effect": taken.effect(), "forwards": done.forwards, **cost}

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

    def rows(self, study: Study, models: Mapping[str, ModelInfo], units: Sequence[Unit], load: Load) -> Rows:
        answers = collect_answers(units, load)
        pooled = accuracy.pool_tasks(answers)
        return {
            "cells": accuracy.cells(models, answers, study.primary),
            "pooled": accuracy.pooled_cells(models, pooled, study.primary),
            "settings": accuracy.sweep_points(pooled),
        }


def collect_answers(units: Sequence[Unit], load: Load) -> dict[accuracy.Key, accuracy.AnswerSet]:
    """Answers of all chunks together."""
    answers: dict[accuracy.Key, accuracy.AnswerSet] = {}
    for unit in units:
        key = (unit.shown, unit.setting, unit.task, unit.condition)
        answers.setdefault(key, accuracy.AnswerSet()).tasks.setdefault(unit.task, []).append(load(unit))
    return answers


def answer_table(units: Sequence[Unit], load: Load) -> pl.DataFrame:
    """Everything that was answered or scored, one row per problem, in the order of the plan."""
    rows = []
    for unit in units:
        if unit.kind in ("answers", "likelihood", "forced"):
            settings = unit.condition.to_dict()
            about = {
                "kind": unit.kind, "model": unit.shown, "setting": unit.setting, "condition": unit.condition.label,
                **{name: settings.get(name) for name in ("name", "k", "rank", "rows", "match")}, "task": unit.task,
            }  # fmt: skip
            rows += [{**about, **row} for row in sorted(load(unit)["rows"], key=lambda row: int(row["problem"]))]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")
