"""The harness's results as ours: right answers with intervals, one verdict per problem, and the files of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkscope import io
from sinkscope.statistics import wilson

# What a task counts as right, first match first; the other numbers stand beside it in the results.
MAIN = ("exact_match,flexible-extract", "pass@1,create_test", "acc,none", "exact_match,none", "acc_norm,none")


def scores_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """Each task with its problems, right answers, accuracy and 95 % interval."""
    tasks: dict[str, Any] = {}
    for task, numbers in results["results"].items():
        values = {name: value for name, value in numbers.items() if isinstance(value, float) and "stderr" not in name}
        samples = results["samples"].get(task, [])
        tasks[task] = {
            "n": len({sample["doc_id"] for sample in samples}),
            "metric": next((name for name in MAIN if name in values), next(iter(values), None)),
            "scores": {name: _score(name, value, samples) for name, value in values.items()},
            "version": results["versions"].get(task),
            "metadata": json.loads(json.dumps(results["configs"].get(task, {}).get("metadata", {}), default=str)),
            "examples": results["n-shot"].get(task),
        }
    return tasks


def _score(name: str, value: float, samples: list[dict[str, Any]]) -> dict[str, Any]:
    metric, _, kept = name.partition(",")
    own = {sample["doc_id"]: sample[metric] for sample in samples if sample["filter"] == kept and metric in sample}
    score: dict[str, Any] = {"value": float(value)}
    if own and all(one in (0, 1) for one in own.values()):
        right = [bool(own[index]) for index in sorted(own)]
        low, high = wilson(sum(right), len(right))
        score |= {"correct": sum(right), "low": low, "high": high, "right": right}
    return score


def settled(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a run says about itself, the same however often it was stopped: files have that."""
    counts = info["requests"]
    done = {"truncated": counts.get("truncated", 0), "answered": counts.get("found", 0) + counts.get("generated", 0)}
    return {**info, "requests": done}


def write_results(folder: Path, summary: dict[str, Any], results: Mapping[str, Any]) -> None:
    """results.json last, under a temporary name first: when it is there, the run is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, samples in results["samples"].items():
        lines = "".join(json.dumps(sample, default=str, ensure_ascii=False) + "\n" for sample in samples)
        io.write(folder / f"samples_{task}.jsonl", lines)
    kept = {name: results[name] for name in ("results", "versions", "n-shot", "higher_is_better", "n-samples")}
    text = json.dumps({**summary, "harness": kept}, indent=1, default=str, ensure_ascii=False)
    io.write(folder / "results.json", text)
