"""Two runs side by side: which cells both have, and how the second differs, paired where the problems are the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sinkscope.errors import StudyError
from sinkscope.runs.run import Run
from sinkscope.statistics import paired
from sinkscope.study.schema import Study
from sinkscope.study.text import aligned, paragraph, points, title

CELL = ["model", "setting", "condition", "task"]


def compare(first: Path | str, second: Path | str, match: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Every cell that both runs have: accuracies, and the difference on common problems, second minus first.

    Where problems are paired, both accuracies are of the common ones; `unpaired` says why others are not.
    match: model of the first run → model of the second that it is compared with, such as base and fine-tune; the runs may
    then be one and the same. Two runs of `table1` are compared by the answers in their folders.
    """
    folders = [Path(first), Path(second)]
    # A problem of table1 is known by its own text, one of a study by its number among those that were drawn.
    drawn = not all((folder / "table1.md").is_file() and (folder / "results.json").is_file() for folder in folders)
    runs = [Run.load(folder) for folder in folders] if drawn else []
    tables = [
        run.answers().filter(pl.col("kind") == "answers").select(*CELL, "problem", "correct") for run in runs
    ] or [_table1_answers(folder) for folder in folders]
    plans = [Study.read(folder / "study.yaml") for folder in folders] if drawn else []
    first_cells, second_cells = (
        table.partition_by(CELL, maintain_order=True, as_dict=True) for table in _matched(tables, match)
    )
    rows: list[dict[str, Any]] = []
    unpaired: dict[str, None] = {}  # in order, each once
    for key in [key for key in first_cells if key in second_cells]:
        cell = dict(zip(CELL, key, strict=True))
        reason = _other_problems(plans, cell["task"]) if drawn else None
        unpaired |= {reason: None} if reason else {}
        rows.append({**cell, **_compared([first_cells[key], second_cells[key]], reason is None)})
    return {
        "cells": rows,
        "unpaired": list(unpaired),
        "verdicts": _changed_verdicts(runs) if drawn else [],
        "only_first": len(first_cells.keys() - second_cells.keys()),
        "only_second": len(second_cells.keys() - first_cells.keys()),
    }


def _matched(tables: list[pl.DataFrame], match: Mapping[str, str] | None) -> list[pl.DataFrame]:
    """Answers of models that are compared, under one name: "base → fine-tune"."""
    if match is None:
        return tables
    found = []
    for which, table, names in zip(("first", "second"), tables, (list(match), list(match.values())), strict=True):
        there = table["model"].unique(maintain_order=True).to_list()
        if missing := [name for name in names if name not in there]:
            raise StudyError(f"The {which} run has no model {missing[0]!r} to match; it has {', '.join(there)}.")
        shown = dict(zip(names, (f"{a} → {b}" for a, b in match.items()), strict=True))
        found.append(table.filter(pl.col("model").is_in(names)).with_columns(pl.col("model").replace(shown)))
    return found


def _compared(mine: list[pl.DataFrame], same: bool) -> dict[str, Any]:
    """One cell of both runs; same: a problem's number means the same problem in both."""
    row: dict[str, Any] = {"n": [len(frame) for frame in mine]}
    both = mine[0].join(mine[1], on="problem", how="inner", suffix="_second").sort("problem")
    if not same or not len(both):
        return {"first": mine[0]["correct"].mean(), "second": mine[1]["correct"].mean(), **row}
    before, after = both["correct"], both["correct_second"]
    found = vars(paired(before.to_list(), after.to_list()))
    return {"first": before.mean(), "second": after.mean(), **row, "paired": len(both), **found}


def _changed_verdicts(runs: list[Run]) -> list[dict[str, Any]]:
    first, second = ({(row.model, row.name): row.value for row in run.found.verdicts} for run in runs)
    return [
        {"model": model, "name": name, "first": value, "second": second[model, name]}
        for (model, name), value in first.items()
        if (model, name) in second and value != second[model, name]
    ]


def _other_problems(plans: Sequence[Study], task: str) -> str | None:
    """Why the problems of a task are not the same ones in both runs, as a sentence."""
    drawn: list[dict[str, Any]] = []
    for plan in plans:
        difficulty = next((one.difficulty for one in plan.tasks if one.name == task), None)
        drawn.append({"seed": plan.seed, "split": plan.split, f"difficulty of {task}": difficulty or "mixed"})
    for what, before in drawn[0].items():
        if before != (after := drawn[1][what]):
            return f"The runs differ in {what} ({before} and {after}): other problems, so nothing is paired and no p is given."
    return None


def _table1_answers(folder: Path) -> pl.DataFrame:
    """The same of a run of table1; its protocol stands for the setting."""
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
        told = f"{type(error).__name__}: {error}"
        raise StudyError(f"The run of table1 in {folder} is damaged ({told}); give its command again.") from None
    schema = {**dict.fromkeys([*CELL, "problem"], pl.String), "correct": pl.Boolean}
    return pl.DataFrame(rows, schema=schema, orient="row")


def shown(found: dict[str, Any]) -> str:
    """The comparison as text of 80 columns."""
    rows: list[Sequence[str]] = [("", "n", "first", "second", "difference", "p")]
    above = None
    for row in found["cells"]:
        cell = title(row["model"], row["task"], row["setting"])
        if cell != above:
            rows.append((cell, "", "", "", "", ""))
            above = cell
        count = str(row["paired"]) if "paired" in row else "/".join(map(str, row["n"]))
        accuracies = (f"{100 * row[which]:.1f}" for which in ("first", "second"))
        tail = (points(row["difference"]), f"{row['p']:.3f}") if "p" in row else ("", "")
        rows.append((f"  {row['condition']}", count, *accuracies, *tail))
    lines = [*aligned(rows, 0), *(line for sentence in found["unpaired"] for line in paragraph(sentence, 0))]
    lines += [
        f"verdict changed: {row['model']} {row['name']}: {row['first']} → {row['second']}" for row in found["verdicts"]
    ]
    lines.append(f"{found['only_first']} cells only in the first, {found['only_second']} only in the second.")
    return "\n".join(lines)
