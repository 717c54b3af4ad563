"""`table1`: the paper's Table 1 on real checkpoints, with both rankings, random controls, intervals, paired tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope import io
from sinkscope.evals.batches import Batch, run_batch
from sinkscope.evals.conditions import grid
from sinkscope.evals.evaluation import evaluate, job_of, loaded_for, right_answers, workers_of
from sinkscope.evals.presets import benchmark_of, settings_for
from sinkscope.paper import TABLE_1
from sinkscope.settings.decode import Decode

if TYPE_CHECKING:
    from sinkscope.evals.batches import Elsewhere, RunBatches
    from sinkscope.interventions.conditions import Condition
    from sinkscope.models.base import Model


def table1(
    models: Sequence[str | Model],
    out: Path | str,
    *,
    tasks: Sequence[str] | None = None,
    ks: Sequence[int] = (1, 5, 10),
    data: Path | str | None = None,
    limit: int | None = None,
    fewshot: int | None = None,
    chat: bool | None = None,
    settings: Decode | Mapping[str, Any] | None = None,
    batch_size: int = 8,
    traced: int = 3,
    problems: int = 100,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    engine: Elsewhere | None = None,
    on_message: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Run models × tasks × {none, k sinks by clean and as_run ranking, k random keys}; returns what results.json holds.

    tasks: by default gsm8k, and humaneval_instruct where a chat template is used, humaneval where none is. Every
    request is kept as soon as it is answered: a killed run goes on where it was. `traced` problems per task are run once
    more with a recorder, for the shares of sink tokens and the dynamics of the heads. The other words are `evaluate`'s.
    """
    folder = Path(out)
    message = on_message or (lambda line: None)
    cells: list[dict[str, Any]] = []
    tokens: list[dict[str, Any]] = []
    dynamics: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    with workers_of(engine, device, message) as run:
        for asked in models:
            model = loaded_for(engine, asked, dtype, device)
            chatty = model.chat_template is not None if chat is None else chat
            names = tasks or ("gsm8k", "humaneval_instruct" if chatty else "humaneval")
            whole: dict[str, Any] | None = None
            for condition in grid(model.causal, ks):
                message(f"{model.name}: {condition.label}")
                summary = evaluate(
                    model, names, intervention=condition.intervention(seed, model.causal), settings=settings,
                    data=data, limit=limit, fewshot=fewshot, chat=chat, batch_size=batch_size,
                    problems=problems, seed=seed, dtype=dtype, device=device, engine=run,
                    out=folder / _safe(model.name) / condition.key, on_message=message if whole is None else None,
                )  # fmt: skip
                whole = whole or summary
                cells += [_cell(model, task, condition, summary, whole) for task in summary["tasks"]]
                runs.append({"condition": condition.to_dict(), **summary["sinkscope"]})
            if traced:
                message(f"{model.name}: tracing {traced} problems per task")
                prompts = _prompts(folder / _safe(model.name) / "none", traced)
                batches = [_to_trace(model, task, some, settings) for task, some in prompts.items() if some]
                for task, found in _sinks(run, model, batches, dtype, device):
                    tokens += [{"model": model.name, "task": task, **row} for row in found["shares"]]
                    dynamics += [{"model": model.name, "task": task, **row} for row in found["heads"]]
    results = {
        "schema": 1,
        "cells": cells,
        "tokens": tokens,
        "dynamics": dynamics,
        "verdicts": [],
        "run": {"runs": runs},
    }
    _write(folder, results)
    return results


def _cell(
    model: Model, task: str, condition: Condition, summary: dict[str, Any], whole: dict[str, Any]
) -> dict[str, Any]:
    entry = summary["tasks"][task]
    score = entry["scores"][entry["metric"]]
    cell: dict[str, Any] = {
        "model": model.name, "task": task, "condition": condition.to_dict(), "metric": entry["metric"], "n": entry["n"],
        "correct": score.get("correct"), "accuracy": score["value"], "low": score.get("low"), "high": score.get("high"),
        "effect": summary["sinkscope"]["effect"],
    }  # fmt: skip
    known = TABLE_1.get((model.family, benchmark_of(task) or ""), {})
    cell["paper"] = known.get(condition.k) if condition.name in ("none", "mask_sinks") else None
    if "right" in score and "right" in whole["tasks"][task]["scores"][entry["metric"]]:
        from sinkscope.statistics import paired

        cell |= paired(right_answers(whole, task), right_answers(summary, task)).to_dict()
    return cell


def _prompts(folder: Path, count: int) -> dict[str, list[str]]:
    """The first prompts of each task, as the model got them."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("samples_*.jsonl")):
        texts: dict[int, str] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            sample = json.loads(line)
            if sample["doc_id"] < count and isinstance(sample["arguments"][0][1], dict):
                texts[sample["doc_id"]] = sample["arguments"][0][0]
        found[path.stem.removeprefix("samples_")] = [texts[index] for index in sorted(texts)]
    return found


def _to_trace(model: Model, task: str, prompts: list[str], asked: Decode | Mapping[str, Any] | None) -> Batch:
    from sinkscope.evals.harness import HarnessLM

    settings = settings_for(model, task, asked)
    lm = HarnessLM(model, settings=settings)
    room = model.context - settings.length
    return Batch("trace", (task,), tuple(tuple(lm.tok_encode(prompt)[-room:]) for prompt in prompts), settings)


def _sinks(
    run: RunBatches | None, model: Model, batches: Sequence[Batch], dtype: str | None, device: str | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Shares of sink tokens and classes of heads by task, in the order of the tasks wherever they were traced."""
    if run is None:
        outcomes = {batch.id: run_batch(model, None, batch) for batch in batches}
    else:
        outcomes = {batch.id: outcome for batch, outcome in run(job_of(model, dtype, device, None), batches)}
    for batch in batches:
        yield batch.names[0], outcomes[batch.id]["answers"][0]


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name).strip("._") or "model"


def _write(folder: Path, results: dict[str, Any]) -> None:
    io.write(folder / "table1.md", as_markdown(results["cells"]))
    io.write(folder / "results.json", json.dumps(results, indent=1, default=str, ensure_ascii=False))


def as_markdown(cells: list[dict[str, Any]]) -> str:
    """One row per cell: accuracy with its interval, the paired difference and its p, and the paper's figure."""
    from sinkscope.interventions.conditions import condition_from_dict

    lines = [
        "| model | task | condition | n | accuracy | 95 % | difference | p | paper |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        condition = condition_from_dict(cell["condition"]).label
        span = "" if cell["low"] is None else f"{cell['low']:.3f}–{cell['high']:.3f}"
        shift = (
            f"{cell['difference']:+.3f} ({cell['difference_low']:+.3f} … {cell['difference_high']:+.3f})"
            if "difference" in cell
            else ""
        )
        chance = f"{cell['p']:.3g}" if "p" in cell else ""
        told = "" if cell["paper"] is None else f"{cell['paper']:.2f}"
        words = [
            cell["model"],
            cell["task"],
            condition,
            cell["n"],
            f"{cell['accuracy']:.3f}",
            span,
            shift,
            chance,
            told,
        ]
        lines.append("| " + " | ".join(map(str, words)) + " |")
    return "\n".join(lines) + "\n"
