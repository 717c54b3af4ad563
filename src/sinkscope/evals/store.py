"""What a benchmark run keeps: finished requests, so that none is redone after kill −9, and its results with intervals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sinkscope import io
from sinkscope.errors import TaskError
from sinkscope.statistics import wilson

# What a record must hold, by what it is: a generation, a likelihood, or what an intervention took away in a batch.
KINDS: tuple[dict[str, Any], ...] = (
    {"text": str},
    {"value": int | float, "error": int | float, "greedy": bool},
    dict.fromkeys(("keys", "keys_seen", "mass", "mass_seen", "leak"), int | float),
)
LISTS = ("ids", "steps")  # of a generation, where they are kept
# What a task counts as right, first match first; the other numbers stand beside it in the results.
MAIN = ("exact_match,flexible-extract", "pass@1,create_test", "acc,none", "exact_match,none", "acc_norm,none")


def key(**parts: Any) -> str:
    """Name of a request: a hash of everything that its answer depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Answers(dict[str, dict[str, Any]]):
    """Finished requests by their names, which only become more; without a path they live in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._read(path)

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            # The process was killed while it wrote: the torn line goes, so that the next one starts on its own.
            with path.open("r+b") as file:
                file.truncate(whole)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not _is_finished(record):
                raise TaskError(
                    f"Expected a finished request in line {number} of {path}, got something else; take another folder."
                )
            self[record["key"]] = record

    def add_all(self, answers: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Keep the answers of a batch, in one piece; when this returns, a kill of the process cannot lose them."""
        records = [{"key": name, **values} for name, values in answers]
        self.update({record["key"]: record for record in records})
        if self.path is not None and records:
            with self.path.open("ab") as file:
                file.write(b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records))


def _is_finished(record: Any) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("key"), str):
        return False
    lists = [record[name] for name in LISTS if name in record]
    plain = all(isinstance(one, list) and all(type(value) is int for value in one) for one in lists)
    return plain and any(all(isinstance(record.get(name), kind) for name, kind in one.items()) for one in KINDS)


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
