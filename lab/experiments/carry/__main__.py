"""What sinks carry: `python -m lab.experiments.carry MODEL… --out FOLDER` reads at sinks and at matched positions.

Writes MODEL.json (means, differences, intervals, probes) and MODEL.parquet (means per problem) for each model, and draws
carry.png from all models that FOLDER holds. A model whose files are there is not read again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkscope.errors import ReadingError, SinkscopeError
from sinkscope.files import replace_file, write_file

BATCH = 10  # problems that are traced together
ANSWER = "####"  # what stands before the final answer in the tasks' worked answers


def read_model(name: str, tasks: Sequence[str], count: int, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Trace and read `count` test problems of each task: everything for the two files of a model."""
    from lab.experiments.carry.clock import Clock
    from lab.experiments.carry.gather import Gathered
    from lab.experiments.carry.reading import read_trace
    from sinkscope.models.load import load
    from sinkscope.tasks import problems
    from sinkscope.tracing import trace

    model = load(name)
    gathered, clock = Gathered(), Clock()
    asked = [problem for task in tasks for problem in problems(task, n=count, split="test", seed=seed)]
    right = 0
    order = sorted(
        range(len(asked)), key=lambda number: (len(asked[number].prompt), number)
    )  # so that little is padded
    for first in range(0, len(order), BATCH):
        numbers = order[first : first + BATCH]
        for number, made in zip(numbers, trace(model, [asked[number].prompt for number in numbers]), strict=True):
            right += asked[number].check(made.text)
            reading = read_trace(model, made, answer=answer_of(made))
            gathered.add(number, reading, made.steps)
            clock.add(number, made, reading)
        print(f"{name}: {first + len(numbers)} of {len(asked)} problems", file=sys.stderr)
    about = {
        "model": name, "causal": model.causal, "shift": model.shift, "tasks": list(tasks), "problems": len(asked),
        "right": right, "seed": seed, "identity": model.identity(),
    }  # fmt: skip
    return {"schema": 1, **about, "readings": gathered.table(seed), "probes": clock.table(seed)}, gathered.per_problem()


def answer_of(trace: Any) -> int | None:
    """Position of the token behind the last ####; None where the text has none."""
    shown = [trace.vocabulary.get(int(token), ("",))[0] for token in trace.canvas[-1]]
    marks = [at for at in range(trace.prompt_length, trace.positions - 1) if ANSWER in shown[at]]
    return marks[-1] + 1 if marks else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.experiments.carry", description=__doc__)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="zoo name, folder or Hub id; none: draw the figure only"
    )
    parser.add_argument("--tasks", nargs="+", default=["arithmetic", "programs"], metavar="TASK")
    parser.add_argument("-n", type=int, default=100, help="problems of each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    given = parser.parse_args(arguments)
    try:
        if given.n < 1 or given.seed < 0:
            raise ReadingError(f"Expected -n of at least 1 and --seed of at least 0, got {given.n} and {given.seed}.")
        for name in given.models:
            _write(name, given.tasks, given.n, given.seed, given.out)
        from lab.experiments.carry.figure import draw

        print(draw(given.out))
    except SinkscopeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _write(name: str, tasks: Sequence[str], count: int, seed: int, folder: Path) -> None:
    import polars as pl

    path = folder / f"{Path(name).name}.json"
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        if [known.get(word) for word in ("tasks", "problems", "seed")] == [list(tasks), count * len(tasks), seed]:
            print(f"{path} exists already")
            return
        raise ReadingError(f"Expected {path} to hold these very problems, and it holds others; name another folder.")
    found, per_problem = read_model(name, tasks, count, seed)
    with replace_file(path.with_suffix(".parquet")) as partial:
        numbers = pl.col("sinks", "others").cast(pl.Float32)
        pl.DataFrame(per_problem).with_columns(numbers).write_parquet(partial, compression="zstd")
    write_file(path, json.dumps(_short(found), allow_nan=False) + "\n")
    print(path)


def _short(value: Any) -> Any:
    """Five digits are more than any interval here decides."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    raise SystemExit(main())
