"""Where the paper's explanations would break: right answers per order of committing, and beside windows, with paired intervals.

    sinkscope study lab/results/breaks/orders.yaml -o runs/orders --workers 1
    sinkscope study lab/results/breaks/orders-dream.yaml -o runs/orders-dream --workers 1
    sinkscope study lab/results/breaks/left-to-right.yaml -o runs/left-to-right --workers 1
    sinkscope study lab/results/breaks/paths.yaml -o runs/paths --workers 1
    python -m lab.experiments.breaks --take runs --write    # answers into lab/results/breaks, and breaks.md from them

`--take` puts the answers of runs in place of the stored ones, model by model, so that a run of one model leaves the others'.
An order is judged by what masking costs under it beyond what it costs under confidence, problem by problem: the difference of
two paired differences. If confidence is a buffer, that is below 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from sinkscope.statistics import bootstrap

OUT = Path(__file__).parents[2] / "lab" / "results" / "breaks"
MODELS = ("tiny-llada", "tiny-dream", "tiny-mmada")
RUNS = ("orders", "orders-dream", "left-to-right", "paths")
ORDERS = {
    "confidence=probability": "confidence",
    "confidence=entropy": "confidence",
    "confidence=random": "random",
    "": "left to right",
}
SHOWN = {
    "none": "nothing",
    "mask sinks K=1 clean by all rows": "top key",
    "mask sinks K=1 clean by all rows structural": "structural key",
    "mask sinks K=1 clean by all rows content": "content key",
    "window radius 32": "window of ± 32 positions",
    "window radius 16": "window of ± 16 positions",
}
Right = dict[tuple[str, str, str], np.ndarray]  # (model, order, condition) → one value per problem, in one order


def take(runs: Path) -> None:
    """Store the answers of the runs that are there; of models that a run does not have, the stored ones stay."""
    for name in RUNS:
        stored, given = OUT / f"{name}.parquet", runs / name / "results.parquet"
        if given.is_file():
            table = pl.read_parquet(given)
            if stored.is_file():
                others = pl.read_parquet(stored).filter(~pl.col("model").is_in(table["model"].unique().to_list()))
                table = pl.concat([others, table.select(others.columns)])
            table.write_parquet(stored)


def read(*runs: str, task: str | None = None) -> Right:
    """Right answers, problem by problem, of one task or of all."""
    found: Right = {}
    for run in runs:
        table = pl.read_parquet(OUT / f"{run}.parquet").filter(pl.col("kind") == "answers")
        if task is not None:
            table = table.filter(pl.col("task") == task)
        for key, rows in table.group_by("model", "setting", "condition"):
            values = rows.sort("task", "problem")["correct"].cast(pl.Float64).to_numpy()
            found[(str(key[0]), ORDERS.get(str(key[1]), str(key[1])), str(key[2]))] = values
    return found


def span(values: np.ndarray) -> str:
    """Mean in points, with the interval over problems."""
    low, high = bootstrap(values.tolist(), 2000, 0)
    return f"{100 * values.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def orders(*runs: str) -> list[str]:
    lines = [
        "## Is confidence a buffer?",
        "",
        "One key per head masked from the second forward on, one token committed per step, on the whole canvas. Confidence is the",
        "probability of the chosen token, in tiny-dream the entropy. Points [95 %].",
        "",
        "| model | task | order of commits | n | right | top key masked | change | beyond what it costs under confidence |",
        "|---|---|---|---|---|---|---|---|",
    ]
    masked = "mask sinks K=1 clean by all rows"
    for task in (None, "arithmetic", "programs"):
        right = read(*runs, task=task)
        for model in (name for name in MODELS if any(key[0] == name for key in right)):
            shown = dict.fromkeys(ORDERS.values())
            lost = {order: right[model, order, masked] - right[model, order, "none"] for order in shown}
            for order, change in lost.items():
                before, after = (100 * right[model, order, label].mean() for label in ("none", masked))
                beyond = "–" if order == "confidence" else span(change - lost["confidence"])
                cells = f"{len(change)} | {before:.1f} % | {after:.1f} % | {span(change)} | {beyond}"
                lines.append(f"| {model} | {task or 'both'} | {order} | {cells} |")
    return lines


def paths(right: Right) -> list[str]:
    lines = [
        "## Are there paths to spare?",
        "",
        "Attention limited to a window, beside one masked key per head; each model's own decode settings. Points [95 %].",
        "",
        "| model | limited by | n | right | change |",
        "|---|---|---|---|---|",
    ]
    for model in (name for name in MODELS if any(key[0] == name for key in right)):
        base = right[model, "left to right", "none"]  # the setting is empty where nothing is swept
        for label, name in SHOWN.items():
            if (mine := right.get((model, "left to right", label))) is not None:
                change = "–" if label == "none" else span(mine - base)
                lines.append(f"| {model} | {name} | {len(mine)} | {100 * mine.mean():.1f} % | {change} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--take", type=Path, metavar="RUNS", help="folder of the runs whose answers are to be stored first"
    )
    parser.add_argument("--write", action="store_true", help="into lab/results/breaks")
    given = parser.parse_args()
    if given.take is not None:
        take(given.take)
    text = "\n".join([
        "# Where the explanations would break", "",
        "Made by `python -m lab.experiments.breaks --write` from the answers beside this page; its docstring has the commands.",
        "", *orders("orders", "orders-dream", "left-to-right"), "", *paths(read("paths")), "",
    ])  # fmt: skip
    print(text)
    if given.write:
        (OUT / "breaks.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
