"""Runs of `table1` as tables of answers, one row per problem, so that two of them can be compared."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from sinkscope.errors import StudyError

COLUMNS = {
    "model": pl.String, "setting": pl.String, "condition": pl.String, "task": pl.String, "problem": pl.String,
    "correct": pl.Boolean,
}  # fmt: skip


def is_table1(folder: Path) -> bool:
    return (folder / "table1.md").is_file() and (folder / "results.json").is_file()


def answers(folder: Path) -> pl.DataFrame:
    """model, setting (the protocol), condition, task, problem, correct; a problem is known by its own text."""
    rows = []
    try:
        for cell in json.loads((folder / "results.json").read_text(encoding="utf-8"))["cells"]:
            samples = (folder / cell["folder"] / f"samples_{cell['task']}.jsonl").read_text(encoding="utf-8")
            metric, _, kept = cell["metric"].partition(",")
            for sample in map(json.loads, samples.splitlines()):
                if sample["filter"] == kept:
                    shown = cell["model"], cell.get("protocol") or "", cell["label"], cell["task"]
                    rows.append((*shown, str(sample["doc_hash"]), bool(sample[metric])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(
            f"Expected a finished run of table1 in {folder}, and it is damaged ({type(error).__name__}: {error}); give the "
            "command again."
        ) from None
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")
