"""Did a patched answer become the source's? `python -m lab.experiments.donors RUN`, of a run with patches from the next problem.

RUN is the folder of a run, or a study file with the table of its answers beside it (patches.yaml and patches.parquet). A row of
a chunk takes from the row after it, the last from the first. Its answer is checked against *that* problem's, under the patch and,
for comparison, with nothing changed: two problems may share an answer. Then token by token: where the unpatched answers of a
problem and of its source differ, how often does the patched one have the source's token? A problem that gave nothing, the row
after the source, is the control: a wrong token may be its token by chance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from sinkscope.errors import SinkscopeError, StudyError
from sinkscope.statistics import bootstrap, wilson
from sinkscope.study.problem_sets import number_problems
from sinkscope.study.schema import Study
from sinkscope.tasks import Problem

HEAD = (
    "| model | condition | answers | right | right for the source | tokens of the source | of another problem | more |"
)


@dataclass(frozen=True)
class Moved:
    """Of one model and condition, over all tasks: answers that are right, right for the source, and tokens that came over."""

    model: str
    label: str
    n: int
    own: int
    source: int
    tokens: tuple[tuple[float, float], ...]  # per problem: share of tokens that are the source's, and another problem's

    def line(self) -> str:
        low, high = wilson(self.source, self.n)
        more = [source - other for source, other in self.tokens]
        least, most = bootstrap(more)
        count = max(len(more), 1)
        source, other = (100 * sum(pair[side] for pair in self.tokens) / count for side in (0, 1))
        return (
            f"| {self.model} | {self.label} | {self.n} | {100 * self.own / self.n:.1f} % | "
            f"{100 * self.source / self.n:.1f} % [{100 * low:.1f}, {100 * high:.1f}] | {source:.1f} % | {other:.1f} % | "
            f"{100 * sum(more) / count:+.1f} [{100 * least:+.1f}, {100 * most:+.1f}] |"
        )


@dataclass(frozen=True)
class Row:
    """A problem by its number, the problem that it takes from, and the one after that, which gives it nothing."""

    number: int
    source: tuple[int, Problem]
    other: int


def moved(run: Path) -> list[Moved]:
    """One row per model and condition: none, and every patch from the next problem."""
    study, answers = _opened(run)
    labels = ["none"] + [
        condition.label for condition in study.conditions
        if condition.name in ("patch_values", "patch_keys") and condition.get("source") == "next"
    ]  # fmt: skip
    if len(labels) == 1:
        raise StudyError(f"Expected patches from the next problem among the conditions of {run}, found none.")
    rows = {task.name: list(_rows(study, task.name)) for task in study.tasks}
    found = []
    for (model,), mine in answers.group_by("model", maintain_order=True):
        plain = _given(mine, "none")
        for label in labels:
            given = _given(mine, label)
            cells = [(part, row) for part in dict.fromkeys(key[:2] for key in given) for row in rows[part[1]]]
            if cells:
                own = sum(given[*part, row.number][0] for part, row in cells)
                source = sum(bool(row.source[1].check(given[*part, row.number][1])) for part, row in cells)
                tokens = [_came_over(plain, given, part, row) for part, row in cells]
                known = tuple(pair for pair in tokens if pair is not None)
                found.append(Moved(str(model), label, len(cells), own, source, known))
    return found


Given = dict[tuple[str, str, int], tuple[bool, str, list[int]]]  # (setting, task, problem) → right, text, tokens


def _given(answers: pl.DataFrame, label: str) -> Given:
    kept = answers.filter(pl.col("condition") == label)
    columns = ("setting", "task", "problem", "correct", "text", "tokens")
    return {row[:3]: (bool(row[3]), row[4], row[5]) for row in kept.select(columns).iter_rows()}


def _came_over(plain: Given, given: Given, part: tuple[str, str], row: Row) -> tuple[float, float] | None:
    """Share of a problem's tokens that are the source's, and the other's, where those differ from its own; None: nowhere."""
    own, now = plain[*part, row.number][2], given[*part, row.number][2]
    shares = []
    for number in (row.source[0], row.other):
        theirs = plain[*part, number][2]
        differ = [(got, wanted) for mine, got, wanted in zip(own, now, theirs, strict=False) if mine != wanted]
        if not differ:
            return None
        shares.append(sum(got == wanted for got, wanted in differ) / len(differ))
    return shares[0], shares[1]


def _opened(run: Path) -> tuple[Study, pl.DataFrame]:
    """The study, and its answers problem by problem."""
    file, table = (run, run.with_suffix(".parquet")) if run.is_file() else (run / "study.yaml", run / "results.parquet")
    for path in (file, table):
        if not path.is_file():
            raise StudyError(
                f"Expected the folder of a finished run, or a study file with its .parquet beside it; there is no {path}."
            )
    return Study.load(file), pl.read_parquet(table).filter(pl.col("kind") == "answers")


def _rows(study: Study, name: str) -> Iterator[Row]:
    """Every problem of a task with those that stand behind it in its chunk."""
    task = next(task for task in study.tasks if task.name == name)
    found = number_problems(
        None, task.problems, kind=task.name, split=study.split, seed=study.seed, difficulty=task.difficulty
    )
    drawn = list(found.items())
    for first in range(0, len(drawn), study.chunk):
        chunk = drawn[first : first + study.chunk]
        for place, (number, _) in enumerate(chunk):
            yield Row(number, chunk[(place + 1) % len(chunk)], chunk[(place + 2) % len(chunk)][0])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.experiments.donors", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run, or a study file with its .parquet beside it")
    given = parser.parse_args(arguments)
    try:
        rows = moved(given.run)
    except SinkscopeError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{HEAD}\n|---|---|---|---|---|---|---|---|")
    print("\n".join(row.line() for row in rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
