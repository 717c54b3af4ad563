"""Two runs side by side: which cells both have, and how the second differs, paired where the problems are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from sinkscope.errors import StudyError
from sinkscope.study.run import Run
from sinkscope.study.statistics import paired

CELL = ["model", "setting", "condition", "task"]


def compare(first: Path | str, second: Path | str) -> dict[str, Any]:
    """Every cell that both runs have: accuracies, and the difference on common problems, second minus first."""
    runs = [Run.load(folder) for folder in (first, second)]
    tables = [_answers(run.folder) for run in runs]
    keys = [frame.select(CELL).unique(maintain_order=True) for frame in tables]
    common = keys[0].join(keys[1], on=CELL, how="inner", maintain_order="left")
    same = [run.results["run"]["seed"] for run in runs]
    rows = []
    for key in common.iter_rows(named=True):
        mine = [frame.filter(*(pl.col(name) == value for name, value in key.items())) for frame in tables]
        row: dict[str, Any] = {
            **key,
            "first": _accuracy(mine[0]),
            "second": _accuracy(mine[1]),
            "n": [len(m) for m in mine],
        }
        both = mine[0].join(mine[1], on="problem", how="inner", suffix="_second").sort("problem")
        if same[0] == same[1] and len(both):
            row |= {
                "paired": len(both),
                **paired(both["correct"].to_list(), both["correct_second"].to_list()).to_dict(),
            }
        rows.append(row)
    verdicts = [{(row["model"], row["name"]): row["value"] for row in run.results["verdicts"]} for run in runs]
    changed = [
        {"model": model, "name": name, "first": verdicts[0][model, name], "second": verdicts[1][model, name]}
        for model, name in verdicts[0]
        if (model, name) in verdicts[1] and verdicts[0][model, name] != verdicts[1][model, name]
    ]
    only = [keys[i].join(keys[1 - i], on=CELL, how="anti").height for i in range(2)]
    return {"cells": rows, "verdicts": changed, "only_first": only[0], "only_second": only[1]}


def _answers(folder: Path) -> pl.DataFrame:
    path = folder / "results.parquet"
    if not path.is_file():
        raise StudyError(f"Expected a finished run, and {folder} has no results.parquet; run the study to its end.")
    return pl.read_parquet(path).filter(pl.col("kind") == "answers")


def _accuracy(frame: pl.DataFrame) -> float:
    return float(frame["correct"].cast(pl.Float64).mean() or 0.0)  # type: ignore[arg-type]


def shown(found: dict[str, Any]) -> str:
    """The comparison as text of 80 columns."""
    lines = [f"{'':<44}{'first':>7}{'second':>8}{'difference':>13}{'p':>8}"]
    title = None
    for row in found["cells"]:
        name = " · ".join(part for part in (row["model"], row["task"], row["setting"]) if part)
        if name != title:
            lines.append(name)
            title = name
        tail = f"{100 * row['difference']:>+13.1f}{row['p']:>8.3f}" if "p" in row else ""
        lines.append(f"  {row['condition'][:42]:<42}{100 * row['first']:>7.1f}{100 * row['second']:>8.1f}{tail}")
    lines += [
        f"verdict changed: {row['model']} {row['name']}: {row['first']} → {row['second']}" for row in found["verdicts"]
    ]
    lines.append(f"{found['only_first']} cells only in the first, {found['only_second']} only in the second.")
    return "\n".join(lines)
