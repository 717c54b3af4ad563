"""Answers to a chunk of problems under one condition."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from sinkscope.conditions import NONE, Condition
from sinkscope.decoding import decode
from sinkscope.decoding.canvas import Step
from sinkscope.decoding.cost import Workload, forwards_of
from sinkscope.decoding.stop_strings import generate_until
from sinkscope.paper import TABLE_1
from sinkscope.results import accuracy
from sinkscope.results.accuracy import with_shifts
from sinkscope.results.rows import Cell
from sinkscope.statistics import confidence_sequence, decided
from sinkscope.study.schema import SequentialPlan, Study, TaskPlan
from sinkscope.study.units import Grade, Job, Load, ModelInfo, Rows, Unit, UnitKind, conditions_for, decoded_units
from sinkscope.study.units.worker import apply_condition, encode_batch, encode_prompt, model_for
from sinkscope.tasks.protocol import benchmark_of

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
        repeats = next(task.repeats or 1 for task in study.tasks if task.name == job.unit.task)
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


# ---- sequential stopping: what is asked next follows from stored units alone


Stored = Callable[[Unit], dict[str, Any] | None]
Group = tuple[str, str, str]  # model, setting, task


def plan_round(study: Study, units: Sequence[Unit], stored: Stored) -> tuple[list[Unit], list[Unit]]:
    """The units that count so far, and those of them that must be run next; nothing is left to run when all are decided."""
    assert study.sequential is not None
    counting: list[Unit] = []
    for chunks in group_chunks(units).values():
        longest = 0
        for condition, own in chunks.items():
            used = count_chunks(study, study.sequential, chunks[NONE], own, stored) if condition != NONE else 0
            counting += own[:used]
            longest = max(longest, used)
        counting += chunks[NONE][: longest or first_look(study, study.sequential)]
    return counting, [unit for unit in counting if stored(unit) is None]


def group_chunks(units: Sequence[Unit]) -> dict[Group, dict[Condition, list[Unit]]]:
    """Answers by what is compared: the chunks of each condition, in the order in which problems are asked."""
    found: dict[Group, dict[Condition, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        if unit.kind == "answers":
            found[unit.model, unit.setting, unit.task][unit.condition].append(unit)
    return found


def first_look(study: Study, plan: SequentialPlan) -> int:
    """Chunks of one round."""
    return math.ceil(plan.round / study.chunk)


def count_chunks(study: Study, plan: SequentialPlan, base: Sequence[Unit], own: Sequence[Unit], stored: Stored) -> int:
    """How many chunks a comparison needs: up to the look that decides it, or the one that is next."""
    step = first_look(study, plan)
    for look in range(step, len(own), step):
        changes = answer_changes(base[:look], own[:look], stored)
        if changes is None:
            return look
        inside, outside = decided(np.asarray(changes), plan.margin / 100)
        if inside[-1] or outside[-1]:
            return look
    return len(own)


def answer_changes(base: Sequence[Unit], own: Sequence[Unit], stored: Stored) -> list[float] | None:
    """Per problem 1 where only the condition is right, −1 where only the unmasked model is; None where chunks are missing."""
    changes: list[float] = []
    for before, after in zip(base, own, strict=True):
        pair = stored(before), stored(after)
        if pair[0] is None or pair[1] is None:
            return None
        right: list[Mapping[int, bool]] = [
            {row["problem"]: row["correct"] for row in one["rows"]} for one in pair if one
        ]
        changes += [float(right[1][number]) - float(right[0][number]) for number in right[0]]
    return changes


def decisions(study: Study, units: Sequence[Unit], stored: Stored) -> dict[tuple[Group, Condition], dict[str, Any]]:
    """How every comparison with nothing masked ended: inside the margin (points), outside of it, or open."""
    assert study.sequential is not None
    found = {}
    for group, chunks in group_chunks(units).items():
        for condition, own in chunks.items():
            changes = answer_changes(chunks[NONE][: len(own)], own, stored) if condition != NONE else None
            if changes:
                inside, outside = (bool(one[-1]) for one in decided(np.asarray(changes), study.sequential.margin / 100))
                name = "inside" if inside else "outside" if outside else "open"
                low, high = confidence_sequence(changes)
                margin = study.sequential.margin
                found[group, condition] = {"margin": margin, "decision": name, "low": low, "high": high}
    return found


# ---- cells of benchmarks


def benchmark_cells(
    study: Study, models: Mapping[str, ModelInfo], units: Sequence[Unit], cells: Sequence[Cell], stored: Stored
) -> list[Cell]:
    """The cells with how the benchmark was asked, what others report, how rounds ended, and how far answers shifted."""
    ends = decisions(study, units, stored) if study.sequential else {}
    found = []
    for cell in cells:
        info = models[cell.model]
        about = info.benchmarks.get(cell.task, {})
        end = next((
            one for (group, condition), one in ends.items()
            if (group[0], group[2], condition.label) == (info.asked, cell.task, cell.label)
        ), None)  # fmt: skip
        published = about.get("published") if cell.label == "none" else None
        paper = _paper_figure(cell, about) if about else cell.paper
        found.append(replace(cell, protocol=about.get("protocol"), published=published, paper=paper, sequential=end))
    answers = {
        key: {int(row["problem"]): row for row in rows} for key, rows in _rows_of(units, stored, "answers").items()
    }
    return with_shifts(found, answers, _rows_of(units, stored, "shift"))


def _paper_figure(cell: Cell, about: Mapping[str, Any]) -> float | None:
    """The paper's figure, for exactly its checkpoint and the protocol that repeats it."""
    exact = about.get("protocol") == "paper" and about.get("published")
    if not exact or cell.condition["name"] not in ("none", "mask_sinks"):
        return None
    return TABLE_1.get((cell.family, benchmark_of(cell.task) or ""), {}).get(int(cell.condition["k"]))


def _rows_of(units: Sequence[Unit], stored: Stored, kind: str) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Rows of stored units by model, task and label of the condition."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for unit in units:
        if unit.kind == kind and (result := stored(unit)) is not None:
            found.setdefault((unit.shown, unit.task, unit.condition.label), []).extend(result["rows"])
    return found
