"""How cost grows: a decode with its length, and a study with its number of work items.

    python benchmarks/scale.py            # prints two tables with their exponents
    python benchmarks/scale.py --write    # … and writes lab/results/scale.md

Lengths: one denoising step of a random LLaDA of 98 M parameters, untraced, traced, and masked (whose second step is masked).
Items: a study of tiny-llada, one problem per item. The answer of one item of each condition is decoded and given to all
others, so that what is timed is the driver: plan, store, resume, assemble and page. Processor time on one thread.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import sinkscope as sk
from attention import MASK, machine, random_module
from sinkscope.report.writing import write
from sinkscope.study.engine import ShouldStop
from sinkscope.study.run import open_run
from sinkscope.study.schema import Study
from sinkscope.study.units import Job, perform

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "scale.md"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MASKED_UP_TO = 8192  # a masked decode takes two steps
ITEMS = (10, 100, 1_000, 10_000)
ANSWER = 32


class Repeat:
    """An engine that decodes one item of each condition and gives its answer to all others."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}

    def work(
        self, study: Study, jobs: Sequence[Job], folder: Path, stop: ShouldStop
    ) -> Iterator[tuple[Job, dict[str, Any]]]:
        for job in jobs:
            key = f"{job.unit.kind} {job.unit.condition}"
            if key not in self.known:
                self.known[key] = perform(study, job, folder)
            yield job, self.known[key]

    def close(self) -> None:
        """Nothing was opened."""


def time_lengths() -> list[dict[str, float]]:
    """Seconds of one step per length: untraced, traced; of two steps, the second masked."""
    model = sk.wrap(random_module(), family="llada", mask_id=MASK)
    rows = []
    for length in LENGTHS:
        ids = torch.randint(2, MASK, (1, length - ANSWER), generator=torch.Generator().manual_seed(1))
        one = sk.Decode.llada(length=ANSWER, block=ANSWER, steps=1)
        row = {
            "n": length,
            "untraced": seconds(lambda: sk.decode(model, ids, one, history=False)),  # noqa: B023
            "traced": seconds(lambda: sk.trace(model, ids, one)),  # noqa: B023
        }
        if length <= MASKED_UP_TO:
            two = sk.Decode.llada(length=ANSWER, block=ANSWER, steps=2)
            with sk.intervene(model, sk.MaskSinks(k=1)):
                row["masked, two steps"] = seconds(lambda: sk.decode(model, ids, two, history=False))  # noqa: B023
        rows.append(row)
        print(row, flush=True)
    return rows


def time_items() -> list[dict[str, float]]:
    """Seconds of each part of a study per number of items."""
    rows = []
    for items in ITEMS:
        with tempfile.TemporaryDirectory() as folder:
            row = time_study(items, Path(folder) / "run")
        rows.append(row)
        print(row, flush=True)
    return rows


def time_study(items: int, out: Path) -> dict[str, float]:
    study = Study.from_dict({
        "name": "scale", "models": ["tiny-llada"], "tasks": [{"name": "arithmetic", "problems": items // 2}], "chunk": 1,
        "conditions": ["none", {"name": "mask_sinks", "k": 1}], "decode": {"length": 8, "block": 8, "steps": 8},
        "trace": {"problems": 0},
    })  # fmt: skip
    row: dict[str, float] = {"n": items}
    started = time.process_time()
    with open_run(study, out, Repeat()) as work:
        row["plan"] = round(time.process_time() - started, 3)
        row["store"] = seconds(work.run_all)
        row["assemble"] = seconds(lambda: work.assemble(work.units))
    row["resume"] = seconds(lambda: sk.run(study, out=out, engine=Repeat()))
    row["page"] = seconds(lambda: write(out))
    return row


def seconds(run: Any) -> float:
    started = time.process_time()
    run()
    return round(time.process_time() - started, 3)


def exponent(rows: list[dict[str, float]], name: str) -> float:
    """Slope of the last two points in logarithms: 1 is proportional to n, 2 to its square."""
    known = [(row["n"], row[name]) for row in rows if row.get(name)]
    (n, a), (m, b) = known[-2:]
    return math.log(b / a) / math.log(m / n)


def write_rows(rows: list[dict[str, float]], what: str) -> list[str]:
    names = [name for name in rows[0] if name != "n"]
    lines = [f"| {what} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        lines.append(f"| {row['n']:,} | {' | '.join(f'{row[name]:.2f}' if name in row else '–' for name in names)} |")
    lines.append(f"| exponent, last two | {' | '.join(f'{exponent(rows, name):.2f}' for name in names)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("lengths", "items"))
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# How cost grows", "",
        f"`python benchmarks/scale.py --write` on {machine()}. Seconds of processor time, one thread.", "",
    ]  # fmt: skip
    if given.only != "lengths":
        items = time_items()
        lines += ["## With the number of work items", "", *write_rows(items, "items"), ""]
        lines += ["One problem per item; answers are decoded once and repeated, so this is the driver's own work.", ""]
    if given.only != "items":
        lengths = time_lengths()
        lines += ["## With the length", "", *write_rows(lengths, "positions"), ""]
        lines += ["One denoising step of 98 M parameters in float32; attention itself grows with the square.", ""]
    print("\n".join(lines))
    if given.write:
        RESULTS.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
