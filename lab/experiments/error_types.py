"""What went wrong in the committed answers, step by step: `python -m lab.experiments.error_types`.

Reads every table of answers in lab/results (problem numbers and texts), draws the same problems again, and grades each answer
to a sum by its first error (lab.experiments.grading). Answers whose verdict is not what the table says are of another draw:
those tables are left out, by name. Shares have Wilson intervals of 95 %.
"""

from __future__ import annotations

import argparse
import functools
from collections import Counter
from pathlib import Path

import polars as pl

from lab.experiments.grading import GRADED, KINDS, grade
from sinkscope.statistics import wilson
from sinkscope.tasks import Problem, problems

RESULTS = Path("results")
OUT = Path("lab/results/pair")
SEEDS = (0, 1, 2)  # a study whose problems are none of these is left out


@functools.cache
def drawn(task: str, count: int, seed: int, difficulty: int | None) -> list[Problem]:
    return list(problems(task, n=count, seed=seed, difficulty=difficulty))


def graded(path: Path) -> pl.DataFrame | None:
    """Model, setting, condition, task, kind of error of every graded answer; None where the problems are not known."""
    table = pl.read_parquet(path)
    if not {"task", "text", "problem", "correct"} <= set(table.columns):
        return None
    table = table.filter(pl.col("task").is_in(GRADED) & pl.col("text").is_not_null())
    if table.is_empty():
        return None
    parts = []
    for (task,), rows in table.group_by("task", maintain_order=True):
        count = int(rows["problem"].max()) + 1  # type: ignore[arg-type]
        for seed, difficulty in ((seed, level) for seed in SEEDS for level in (None, 1, 2, 3)):
            asked = drawn(str(task), count, seed, difficulty)
            pairs = list(zip(rows["problem"], rows["text"], rows["correct"], strict=True))
            if all(asked[number].check(text) == right for number, text, right in pairs):
                kinds = [grade(asked[number], text).kind for number, text, _ in pairs]
                parts.append(rows.with_columns(pl.Series("error", kinds)))
                break
        else:
            return None
    return pl.concat(parts)


def lines(table: pl.DataFrame) -> list[str]:
    """A row of the page per model, setting, task and condition, in the order of the table."""
    found = []
    keys = ["model", "setting", "task", "condition"]
    for (model, setting, task, condition), rows in table.group_by(keys, maintain_order=True):
        counts, n = Counter(rows["error"]), rows.height
        cells = [_cell(counts[kind], n) for kind in KINDS]
        forgiven = _cell(counts["right"] + counts["one step too many"], n)
        told = f"{model}{f', {setting}' if setting else ''} | {task} | {condition} | {n}"
        found.append(f"| {told} | {' | '.join(cells)} | {forgiven} |")
    return found


def _cell(count: int, n: int) -> str:
    if not count:
        return "0"
    low, high = wilson(count, n)
    return f"{100 * count / n:.0f} [{100 * low:.0f}, {100 * high:.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT / "error-types.md")
    given = parser.parse_args()
    page = [
        "# Error types of the committed answers to sums", "",
        "Made by `python -m lab.experiments.error_types`. Percent of the answers of a condition [95 %, Wilson], by the *first*",
        "error of each answer (`lab.experiments.grading`). Kinds of error: Other numbers or sign than the step needs; a wrong",
        "result; all steps right and then one more; steps or the final line missing; no step at all. Last column: right, with",
        "answers forgiven that only had a step too many.", "",
    ]  # fmt: skip
    left_out, frames = [], []
    table_of_all = given.out.with_suffix(".parquet")
    for path in sorted(RESULTS.rglob("*.parquet"), key=lambda path: (path.parent.parent.name != "pair", str(path))):
        table = graded(path)
        name = str(path.relative_to(RESULTS))
        if table is None:
            left_out.append(name)
            continue
        frames.append(
            table.select("model", "setting", "task", "condition", "problem", "error").with_columns(run=pl.lit(name))
        )
        head = ["model", "task", "condition", "n", *KINDS, "right, one step more forgiven"]
        page += [f"## {name}", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines(table), ""]
    page += [
        "## Left out",
        "",
        "No graded kind of problem, or problems of another draw: " + ", ".join(f"`{one}`" for one in left_out) + ".",
        "",
    ]
    given.out.write_text("\n".join(page), encoding="utf-8")
    pl.concat(frames).write_parquet(table_of_all, compression="zstd")
    print(
        f"{given.out}: {sum(frame.height for frame in frames)} answers of {len(frames)} runs, {len(left_out)} tables left out"
    )


if __name__ == "__main__":
    main()
