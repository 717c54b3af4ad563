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
from sinkscope.statistics import bootstrap_ratio
from sinkscope.tasks import problems
from sinkscope.tracing.trace import Part

OUT = Path("lab/results/pair/relocation.md")
FEWEST_ROWS = 8
DRAWS = 2000


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
PARTS: tuple[Part, ...] = ("answer", "rest", "all")
GROUPS = ("part", "rule")
KEPT = ("layer", "head", "class", "relocating", "main_keys", "standing", "moves", "presence")


def look(name: str, count: int, length: int, block: int) -> pl.DataFrame:
    """A row per problem, part of the generation, rule, layer and head; half of the problems are sums, half programs."""
    model = sk.load(name, dtype="bfloat16" if name.startswith("smol") else None)
    # An autoregressive model computes all rows again, so that its columns too are sums over many queries. It writes as many
    # tokens as a canvas has: its end is set to a token that it never writes.
    words: dict[str, Any] = {"block": block, "steps": length, "commit": "quota", "confidence": "probability"}
    if model.causal:
        words = {"recompute": True, "eos_id": model.vocabulary - 1}
    tables: list[pl.DataFrame] = []
    for task in ("arithmetic", "programs"):
        for number, problem in enumerate(problems(task, n=count // 2, difficulty=3)):
            trace = sk.trace(model, problem.prompt, length=length, **words)
            for part in PARTS:
                steps = trace.part_steps(part)
                if steps.start == steps.stop:  # nothing was written behind this answer
                    continue
                for rule, measure in RULES.items():
                    table = trace.heads(measure, part=part).select(KEPT)
                    origin = {"model": name, "task": task, "problem": number, "part": part, "rule": rule}
                    labels = {word: pl.lit(value) for word, value in origin.items()}
                    tables.append(table.with_columns(**labels, steps=pl.lit(steps.stop - steps.start)))
    return pl.concat(tables)


def ratio(table: pl.DataFrame, wanted: pl.Expr, among: pl.Expr) -> str:
    """Heads that are wanted among some heads, in percent; the interval is over generations."""
    sums = [wanted.sum().alias("part"), among.sum().alias("whole")]
    by_problem = table.group_by("task", "problem", maintain_order=True).agg(sums)
    part, whole = (by_problem[name].to_numpy().astype(float) for name in ("part", "whole"))
    if not whole.sum():
        return "–"
    low, high = bootstrap_ratio(part, whole, DRAWS, seed=0)
    return f"{100 * part.sum() / whole.sum():.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def row(table: pl.DataFrame) -> str:
    """Classes of the heads of every generation, in percent."""
    kind, every = pl.col("class"), pl.col("class").is_not_null()
    some = kind != "none"
    shares = [
        ratio(table, some, every),
        ratio(table, kind == "static", some),
        ratio(table, some & (kind != "static") & ~pl.col("relocating"), some),
        ratio(table, some & pl.col("relocating"), some),
    ]
    generations = table.select("task", "problem").unique().height
    steps = table.group_by("task", "problem").agg(pl.col("steps").first())["steps"].to_numpy().mean()
    cells = [*table.select("model", *GROUPS).row(0), str(generations), f"{float(steps):.0f}"]
    return "| " + " | ".join([*cells, *shares]) + " |"


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
        print(*(row(part) for _, part in tables[-1].group_by(*GROUPS, maintain_order=True)), sep="\n", flush=True)
    head = [
        "model",
        "part",
        "sinks",
        "generations",
        "steps",
        "heads with a sink",
        "static",
        "intermittent",
        "relocating",
    ]
    sizes = f"--length {given.length} --block {given.block}"
    command = f"python -m lab.experiments.relocation --models {given.models} -n {given.n} {sizes}"
    page = [
        "# Classes of heads by part of the generation and by definition of a sink", "",
        f"Made by `{command}`. Canvases of {given.length} tokens in blocks of {given.block}, one token per denoising step,",
        "never stopped, half arithmetic problems and half programs. *answer*: up to the step that writes the end of the",
        "answer; *rest*: what is filled behind it. The first share is of all heads, the others of the heads with a sink, in %",
        "[95 % over generations]. *Static*: one key is a sink in 80 % of the steps; *relocating*: two or more keys were the",
        "main sink in turn; *intermittent*: the others, whose sink comes and goes. Every head of every generation is in the",
        "parquet beside this page.", "",
        f"| {' | '.join(head)} |", "|" + "---|" * len(head),
        *(row(part) for table in tables for _, part in table.group_by(*GROUPS, maintain_order=True)), "",
    ]  # fmt: skip
    given.out.write_text("\n".join(page), encoding="utf-8")
    pl.concat(tables).write_parquet(given.out.with_suffix(".parquet"), compression="zstd")


if __name__ == "__main__":
    main()
