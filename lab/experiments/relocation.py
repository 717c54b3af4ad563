"""How many heads have a main sink that really changes place: `python -m lab.experiments.relocation`.

Traces of long answers (64 tokens, blocks of 16, one token per step), and the classes of every head of every trace, by the
paper's rule (column sums above 3) and by shares of the head (0.3 and 0.1). Intervals are over problems: whole traces are drawn.
In a causal model the first keys are seen by more rows, so column sums favour sinks that stand still there; shares do not.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

import sinkscope as sk
from sinkscope.sinks.rules import Columns, Rule
from sinkscope.statistics import bootstrap
from sinkscope.tasks import problems

OUT = Path("lab/results/pair/relocation.md")
FEWEST_ROWS = 8


@dataclass(frozen=True)
class WidelySeen(sk.HeadShare):
    """A share of the head, of keys that at least eight rows see: the newest token of a causal model is seen by its own alone."""

    def mark(self, columns: Columns) -> Tensor:
        return super().mark(columns) & (columns.seen >= FEWEST_ROWS)


RULES: dict[str, Rule] = {
    "column sum above 3": sk.Threshold(3.0, unit="sum"),
    "0.3 of the head": WidelySeen(0.3),
    "0.1 of the head": WidelySeen(0.1),
}
KEPT = ("layer", "head", "class", "relocating", "main_keys", "standing", "moves", "presence")


def look(name: str, count: int, length: int, block: int) -> pl.DataFrame:
    """A row per problem, rule, layer and head; half of the problems are sums, half programs."""
    model = sk.load(name, dtype="bfloat16" if name.startswith("smol") else None)
    # An autoregressive model computes all rows again, so that its columns too are sums over many queries. It writes as many
    # tokens as a canvas has: its end is set to a token that it never writes.
    words: dict[str, Any] = {"block": block, "steps": length, "commit": "quota", "confidence": "probability"}
    if model.causal:
        words = {"recompute": True, "eos_id": model.vocabulary - 1}
    parts: list[pl.DataFrame] = []
    for task in ("arithmetic", "programs"):
        for number, problem in enumerate(problems(task, n=count // 2, difficulty=3)):
            trace = sk.trace(model, problem.prompt, length=length, **words)
            for rule, measure in RULES.items():
                table = trace.heads(measure).select(KEPT)
                told = {"model": name, "task": task, "problem": number, "rule": rule, "steps": trace.steps}
                parts.append(table.with_columns(**{word: pl.lit(value) for word, value in told.items()}))
    return pl.concat(parts)


def percent(marks: pl.Series) -> float:
    return 100 * int(marks.sum()) / len(marks)


def row(table: pl.DataFrame) -> str:
    """Shares over heads and problems, in percent; the interval is over problems."""
    by_problem = table.group_by("task", "problem", maintain_order=True).agg(pl.col("relocating").mean())["relocating"]
    low, high = bootstrap(by_problem.to_list())
    share = percent(table["relocating"])
    classes = [f"{percent(table['class'] == name):.1f}" for name in ("static", "moving", "flash", "split", "none")]
    moving = table.filter(pl.col("class") == "moving")
    stays = f"{int((moving['main_keys'] < 2).sum())} of {moving.height}"
    heads = table.height
    cells = [table["model"][0], table["rule"][0], str(len(by_problem)), f"{int(table['relocating'].sum())} of {heads}"]
    return "| " + " | ".join([*cells, f"{share:.1f} [{100 * low:.1f}, {100 * high:.1f}]", *classes, stays]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="tiny-llama,tiny-llada,tiny-dream,tiny-mmada,smol-llama,smol-dream")
    parser.add_argument("-n", type=int, default=40, help="problems per model")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tables = []
    for name in given.models.split(","):
        tables.append(look(name, given.n, given.length, given.block))
        print(*(row(part) for _, part in tables[-1].group_by("rule", maintain_order=True)), sep="\n", flush=True)
    head = ["model", "sinks", "traces", "relocating heads", "% [95 %]", "static", "moving", "flash", "split", "none",
            "moving heads whose main sink has one place"]  # fmt: skip
    sizes = f"--length {given.length} --block {given.block}"
    command = f"python -m lab.experiments.relocation --models {given.models} -n {given.n} {sizes}"
    page = [
        "# Relocating heads in long answers", "",
        f"Made by `{command}`. Answers of {given.length} tokens in blocks of {given.block}, one token per step, half sums",
        "and half programs. A head of a trace is *relocating* where two or more keys were its main sink, no key is a sink in",
        "80 % of the steps, and it is no flash. Shares of (head, trace) in percent; the interval is over traces. Every head of",
        "every trace is in the parquet beside this page.", "",
        f"| {' | '.join(head)} |", "|" + "---|" * len(head),
        *(row(part) for table in tables for _, part in table.group_by("rule", maintain_order=True)), "",
    ]  # fmt: skip
    given.out.write_text("\n".join(page), encoding="utf-8")
    pl.concat(tables).write_parquet(given.out.with_suffix(".parquet"), compression="zstd")


if __name__ == "__main__":
    main()
