"""Did a patched answer become the source's? `python -m sinkscope.study.donors RUN`, of a run with patches from the next problem.

A row of a chunk takes from the row after it, the last from the first. Its answer is checked against *that* problem's, under
the patch and, for comparison, with nothing changed: two problems may share an answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import SinkscopeError, StudyError
from sinkscope.statistics import wilson
from sinkscope.study.schema import Study
from sinkscope.tasks import problems


@dataclass(frozen=True)
class Moved:
    """Of one model and condition, over all tasks: answers that are right, and answers that are right for the source."""

    model: str
    label: str
    n: int
    own: int
    source: int

    def line(self) -> str:
        low, high = wilson(self.source, self.n)
        return (
            f"| {self.model} | {self.label} | {self.n} | {100 * self.own / self.n:.1f} % | "
            f"{100 * self.source / self.n:.1f} % [{100 * low:.1f}, {100 * high:.1f}] |"
        )


def moved(folder: Path) -> list[Moved]:
    """One row per model and condition: none, and every patch from the next problem."""
    if not (folder / "study.yaml").is_file():
        raise StudyError(f"Expected the folder of a run, and {folder} has no study.yaml; name one that a study wrote.")
    study = Study.load(folder / "study.yaml")
    asked = {
        task.name: list(problems(task.name, n=task.problems, split=study.split, seed=study.seed, difficulty=task.difficulty))
        for task in study.tasks
    }  # fmt: skip
    found: dict[tuple[str, str], list[int]] = {}
    for model, label, task, rows in _units(folder):
        counts = found.setdefault((model, label), [0, 0, 0])
        for row, source in zip(rows, [*rows[1:], *rows[:1]], strict=True):
            counts[0] += 1
            counts[1] += bool(row["correct"])
            counts[2] += bool(asked[task][source["problem"]].check(row["text"]))
    if not any(label != "none" for _, label in found):
        raise StudyError(f"Expected patches from the next problem among the conditions of {folder}, found none.")
    return [Moved(model, label, *counts) for (model, label), counts in found.items()]


def _units(folder: Path) -> Iterator[tuple[str, str, str, list[dict[str, Any]]]]:
    """Model, label, task and rows in the order of the batch, of every unit that counts."""
    from sinkscope.study.unit import Unit

    for path in sorted((folder / "units").glob("answers__*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        unit = Unit.from_dict(stored["unit"])
        patched = unit.condition.name in ("patch_values", "patch_keys") and unit.condition.source == "next"
        if patched or unit.condition.name == "none":
            yield unit.shown, unit.condition.label, unit.task, stored["result"]["rows"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sinkscope.study.donors", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    given = parser.parse_args(arguments)
    try:
        rows = moved(given.run)
    except SinkscopeError as error:
        print(error, file=sys.stderr)
        return 1
    print("| model | condition | answers | right | right for the source |\n|---|---|---|---|---|")
    print("\n".join(row.line() for row in rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
