"""Two runs side by side: which cells both have, and how the second differs, paired where the problems are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sinkscope.errors import StudyError
from sinkscope.files import read_yaml, report_damage
from sinkscope.results.rows import Results, need_results, read_answers
from sinkscope.results.text import aligned, paragraph, points, title
from sinkscope.statistics import paired

CELL = ["model", "setting", "condition", "task"]


def compare_runs(first: Path | str, second: Path | str, match: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Every cell that both runs have: accuracies, and the difference on common problems, second minus first.

    Where problems are paired, both accuracies are of the common ones; `unpaired` says why others are not.
    match: model of the first run → model of the second that it is compared with, such as base and fine-tune; the runs may
    then be one and the same.
    """
    folders = [Path(first), Path(second)]
    results = [need_results(folder) for folder in folders]
    tables = [
        read_answers(folder).filter(pl.col("kind") == "answers").select(*CELL, "problem", "correct")
        for folder in folders
    ]
    draws = [_problem_draw(folder) for folder in folders]
    first_cells, second_cells = (
        table.partition_by(CELL, maintain_order=True, as_dict=True) for table in _matched(tables, match)
    )
    rows: list[dict[str, Any]] = []
    unpaired: dict[str, None] = {}  # in order, each once
    for key in [key for key in first_cells if key in second_cells]:
        cell = dict(zip(CELL, key, strict=True))
        reason = _other_problems(draws, cell["task"])
        unpaired |= {reason: None} if reason else {}
        rows.append({**cell, **_compare_cell([first_cells[key], second_cells[key]], reason is None)})
    if not rows:
        names = [", ".join(dict.fromkeys(table["model"].to_list())) for table in tables]
        raise StudyError(
            f"The runs have no cell in common: the first has the models {names[0]}, the second {names[1]}; compare runs of the "
            "same models, tasks and conditions, or name models that differ with --match-models."
        )
    return {
        "cells": rows,
        "unpaired": list(unpaired),
        "verdicts": _changed_verdicts(results),
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


def _compare_cell(mine: list[pl.DataFrame], same: bool) -> dict[str, Any]:
    """One cell of both runs; same: a problem's number means the same problem in both."""
    row: dict[str, Any] = {"n": [len(frame) for frame in mine]}
    both = mine[0].join(mine[1], on="problem", how="inner", suffix="_second").sort("problem")
    if not same or not len(both):
        return {"first": mine[0]["correct"].mean(), "second": mine[1]["correct"].mean(), **row}
    before, after = both["correct"], both["correct_second"]
    found = vars(paired(before.to_list(), after.to_list()))
    return {"first": before.mean(), "second": after.mean(), **row, "paired": len(both), **found}


def _changed_verdicts(results: Sequence[Results]) -> list[dict[str, Any]]:
    first, second = ({(row.model, row.name): row.value for row in one.verdicts} for one in results)
    return [
        {"model": model, "name": name, "first": value, "second": second[model, name]}
        for (model, name), value in first.items()
        if (model, name) in second and value != second[model, name]
    ]


def _problem_draw(folder: Path) -> dict[str, Any]:
    """What decides which problems a run drew: seed, split, and the difficulty of each task."""
    study = read_yaml(folder / "study.yaml", StudyError)
    with report_damage(f"{folder / 'study.yaml'}", StudyError):
        tasks = {str(task["name"]): task.get("difficulty") or "mixed" for task in study["tasks"]}
    return {"seed": study.get("seed", 0), "split": study.get("split", "test"), "tasks": tasks}


def _other_problems(draws: Sequence[Mapping[str, Any]], task: str) -> str | None:
    """Why the problems of a task are not the same ones in both runs, as a sentence."""
    sides = [{**draw, f"difficulty of {task}": draw["tasks"].get(task)} for draw in draws]
    for what in ("seed", "split", f"difficulty of {task}"):
        before, after = (side[what] for side in sides)
        if before != after:
            return f"The runs differ in {what} ({before} and {after}): other problems, so nothing is paired and no p is given."
    return None


def comparison_text(found: Mapping[str, Any]) -> str:
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
