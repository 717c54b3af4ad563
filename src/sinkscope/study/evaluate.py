"""`evaluate`: one model through benchmarks and our own tasks, as it is or under a condition; a killed run is resumed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sinkscope.conditions import NONE, Condition
from sinkscope.errors import TaskError
from sinkscope.models.model import Model
from sinkscope.results.accuracy import removed_shares
from sinkscope.statistics import wilson
from sinkscope.study.engine import Engine, Ray
from sinkscope.study.problem_sets import ProblemSets, load_outline
from sinkscope.study.run import OnMessage, OnProgress, Work, open_run
from sinkscope.study.schema import Study
from sinkscope.study.table1 import benchmark_words
from sinkscope.study.units.worker import in_memory
from sinkscope.tasks.benchmarks import pass_at_k


def eval_study(model: str, tasks: Sequence[str], condition: Condition = NONE, **choices: Any) -> Study:
    """One model under one condition. choices: those of `benchmark_words`."""
    entries = [{"name": "none"}] + ([] if condition == NONE else [condition.entry()])
    words = benchmark_words(tasks, **choices)
    return Study.from_dict({"name": "eval", "models": [model], **words, "conditions": entries})


def evaluate(
    model: str | Model,
    tasks: Sequence[str],
    condition: Condition = NONE,
    *,
    out: Path | str | None = None,
    engine: str | Ray | Engine = "local",
    workers: int | None = 1,
    pass_at: Sequence[int] = (1,),
    on_message: OnMessage | None = None,
    on_progress: OnProgress | None = None,
    **choices: Any,
) -> dict[str, Any]:
    """Score a model; with `out`, a killed run is resumed, and its score is the same. choices: those of `eval_study`."""
    repeats = choices.get("repeats", 1)
    if max(pass_at) > repeats:
        raise TaskError(
            f"pass@{max(pass_at)} needs at least {max(pass_at)} answers per problem, got {repeats}; raise repeats."
        )
    name = model if isinstance(model, str) else model.name
    study = eval_study(name, tasks, condition, **choices)
    condition = study.conditions[-1]  # with every default filled in
    with ExitStack() as stack:
        stack.enter_context(in_memory({} if isinstance(model, str) else {name: model}))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else Path(out)
        work = stack.enter_context(open_run(study, folder, engine, workers, on_message, on_progress))
        work.run_units([unit for unit in work.units if unit.condition == condition])
        return summarise(work, condition, pass_at)


def summarise(work: Work, condition: Condition, pass_at: Sequence[int]) -> dict[str, Any]:
    """Each task with its problems, right answers, accuracy, interval, and what was removed."""
    (info,) = work.models
    found: dict[str, Any] = {}
    for task in work.study.tasks:
        chunks = [
            work.store.load(unit) for unit in work.units if unit.task == task.name and unit.condition == condition
        ]
        rows = sorted((row for chunk in chunks for row in chunk["rows"]), key=lambda row: int(row["problem"]))
        right = [bool(row["correct"]) for row in rows]
        low, high = wilson(sum(right), len(right))
        scores: dict[str, Any] = {
            "accuracy": {
                "value": sum(right) / len(right),
                "correct": sum(right),
                "low": low,
                "high": high,
                "right": right,
            }
        }
        for k in pass_at if task.repeats > 1 else ():
            values = [pass_at_k(len(row["verdicts"]), sum(row["verdicts"]), k) for row in rows]
            scores[f"pass@{k}"] = {"value": sum(values) / len(values)}
        effect = removed_shares(chunk["effect"] for chunk in chunks)
        found[task.name] = {"n": len(rows), "scores": scores, **effect, **info.benchmarks.get(task.name, {})}
    return {
        "schema": 2, "model": dict(info.identity), "condition": condition.to_dict(), "tasks": found,
        "settings": {task.name: dict(info.settings_of(task.name, "")) for task in work.study.tasks},
        "run": work.about,
    }  # fmt: skip


def first_prompts(model: str, tasks: Sequence[str], **choices: Any) -> list[dict[str, Any]]:
    """The first problem of every benchmark as the model would get it, with settings and stop strings; no weights are loaded.

    text is None where the checkpoint has no tokenizer here: then the turns are all that can be shown.
    """
    study = eval_study(model, tasks, **choices)
    sets = ProblemSets(study)
    sets.outlines[model] = load_outline(model, need_tokenizer=False)
    found = []
    for task in study.tasks:
        if not task.is_benchmark:
            raise TaskError(f"Expected benchmarks with --show-prompt, got {task.name}; see sk.tasks.problems for ours.")
        asked = sets.benchmark(model, task)
        found.append({
            "task": task.name, "protocol": asked.protocol.name, "how": asked.how, "turns": asked.messages(),
            "text": asked.first_text(), "settings": write_settings(asked.settings().to_dict()), "stops": asked.stops,
            "published": asked.published,
        })  # fmt: skip
    return found


def write_settings(settings: Mapping[str, Any]) -> str:
    """Every setting on one line, defaults too: what was not printed cannot be compared."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def evaluate_with_harness(
    model: str | Model, tasks: Sequence[str], condition: Condition = NONE, *, limit: int | None = None, **words: Any
) -> dict[str, Any]:
    """Any other task of lm-evaluation-harness, by its own evaluator and with its own metrics; not resumed."""
    from lm_eval.evaluator import evaluate as run_harness

    from sinkscope.tasks.benchmarks import load_harness_tasks
    from sinkscope.tasks.harness import HarnessLM

    adapter = HarnessLM(model, None if condition == NONE else condition, **words)
    found = run_harness(adapter, load_harness_tasks(tasks), limit=limit, bootstrap_iters=0)
    scores = {
        task: {
            "n": found["n-samples"][task]["effective"],
            "scores": {name: {"value": value} for name, value in values.items() if isinstance(value, float)},
        }
        for task, values in found["results"].items()
    }
    return {"schema": 2, "tasks": scores, **adapter.get_model_info()}
