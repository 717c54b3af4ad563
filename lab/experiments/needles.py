"""Are the strongest keys of a long context sinks, or the facts that were asked for? `python -m lab.experiments.needles`.

A cache that drops the strongest sixteenth of the keys ruins tiny-long (lab/results/cache.md). Those keys may be sinks, or the
lines that hold the answer. Here the two are told apart. *Facts* are the tokens of the lines that the answer needs, *question* is
the last line. The other lines of the prompt do not matter for the answer.

A sixteenth of the keys of every head is hidden at every step, ranked by the unmasked attention of the last one. Hidden are
the strongest; the strongest that are neither facts nor question; the strongest of lines that do not matter. In the last case
nothing of the answer is hidden either. Controls are random keys of lines that do not matter, the facts among the strongest keys,
and the fact lines in all heads, which shows that they are needed.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

import sinkscope as sk
from sinkscope.attention.call import Call
from sinkscope.interventions import Intervention
from sinkscope.interventions.base import Selector, top
from sinkscope.interventions.memory import Map, Memory
from sinkscope.models.family import render_chat
from sinkscope.models.model import Model
from sinkscope.statistics import change_interval, wilson
from sinkscope.tasks import Problem, problems

OUT = Path("lab/results/cache/needles.md")
FACTS = {"needle": ("Card: ",), "errands": ("Now ", "Please ")}
LENGTH = 24  # of the canvas
PART = 16  # one key in so many is hidden


@dataclass(frozen=True)
class Strongest(Selector):
    """Hide the k keys of every head that drew most at the last step, without those at `spared`; or only those at `among`."""

    k: int
    spared: tuple[int, ...] = ()
    among: tuple[int, ...] | None = None

    @property
    def is_noop(self) -> bool:
        return self.k == 0

    def maps(self) -> set[Map]:
        return {("clean", "all")}

    def select(self, call: Call, memory: Memory) -> Tensor | None:
        scores = memory.scores(call, "clean", "all") if call.layer in memory.layers else None
        if scores is None:
            return None
        scores = scores.clone()  # [batch, head, key]
        scores[..., list(self.spared)] = 0.0
        picked = top(scores, self.k)
        if self.among is not None:
            there = torch.zeros(call.keys, dtype=torch.bool)
            there[list(self.among)] = True
            picked &= there
        return picked


@dataclass(frozen=True)
class Places:
    """Positions of a prompt by what they are."""

    facts: tuple[int, ...]
    question: tuple[int, ...]
    rest: tuple[int, ...]


def places_of(model: Model, problem: Problem) -> Places:
    """Of every token of the prompt: does it stand in a line that the answer needs, in the question, or in neither?"""
    tokenizer = model.require_tokenizer()
    text = render_chat(tokenizer, [{"role": "user", "content": problem.prompt}])
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if coded["input_ids"] != model.encode(problem.prompt)[0].tolist():
        raise SystemExit("the rendered prompt has other tokens than the model's")
    start = text.index(problem.prompt)
    lines = problem.prompt.split("\n")
    found: dict[str, list[int]] = {"facts": [], "question": []}
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        if last or line.startswith(FACTS[problem.kind]):
            at = start + len("\n".join(lines[:number])) + (number > 0)
            inside = [i for i, (low, high) in enumerate(coded["offset_mapping"]) if low < at + len(line) and high > at]
            found["question" if last else "facts"] += inside
    taken = {*found["facts"], *found["question"]}
    rest = tuple(i for i in range(len(coded["input_ids"])) if i not in taken)
    return Places(tuple(found["facts"]), tuple(found["question"]), rest)


def conditions(at: Places, keys: int, draw: random.Random) -> dict[str, Intervention | None]:
    k, spared = keys // PART, (*at.facts, *at.question)
    return {
        "nothing": None,
        "strongest": Strongest(k),
        "strongest besides facts and question": Strongest(k, spared),
        "strongest of lines that do not matter": Strongest(k, (*spared, *range(keys - LENGTH, keys))),
        "facts among the strongest": Strongest(k, among=at.facts),
        "random besides facts and question": sk.MaskPositions(tuple(sorted(draw.sample(at.rest, k))), since="second"),
        "the fact lines, in all heads": sk.MaskPositions(at.facts, since="second"),
    }


def composition(trace: sk.Trace, at: Places) -> Iterator[dict[str, Any]]:
    """What the strongest sixteenth of a head is made of, as shares of those keys and of what they drew."""
    received = torch.as_tensor(trace.received).float().sum(3)  # [step, layer, head, key]
    k = received.shape[-1] // PART
    best = received.topk(k, dim=-1)
    where = torch.full((received.shape[-1],), 3)
    for number, part in enumerate((at.facts, at.question, at.rest)):
        where[list(part)] = number
    for number, name in enumerate(("facts", "question", "rest", "canvas")):
        mine = where[best.indices] == number
        yield {
            "part": name, "keys": float(mine.float().mean()),
            "mass": float((best.values * mine).sum() / best.values.sum()), "canvas": float((where == number).float().mean()),
        }  # fmt: skip


def run(name: str, task: str, count: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Answers, a row per problem and condition; and parts, a row per traced problem and part of the canvas."""
    model = sk.load(name)
    settings = sk.Decode.llada(length=LENGTH, block=8, steps=LENGTH)
    answers, parts = [], []
    for number, problem in enumerate(problems(task, n=count, split="test", seed=0, difficulty=3)):
        ids, at = model.encode(problem.prompt), places_of(model, problem)
        for label, change in conditions(at, ids.shape[1] + LENGTH, random.Random(number)).items():
            if change is None:
                done, share = sk.decode(model, ids, settings), None
            else:
                with sk.intervene(model, change) as active:
                    done = sk.decode(model, ids, settings)
                share = active.effect.mass_share
            text = str(model.require_tokenizer().decode(done.tokens[0, ids.shape[1] :], skip_special_tokens=True))
            row = {"task": task, "problem": number, "condition": label, "correct": problem.check(text), "mass": share}
            answers.append(row)
        if number < 10:
            trace = sk.trace(model, ids, settings)
            assert isinstance(trace, sk.Trace)  # of one prompt
            parts += [{"task": task, "problem": number, **row} for row in composition(trace, at)]
    return pl.DataFrame(answers, schema_overrides={"mass": pl.Float64}), pl.DataFrame(parts)


def lines_of(answers: pl.DataFrame) -> Iterator[str]:
    base = answers.filter(pl.col("condition") == "nothing")["correct"].to_list()
    for label in answers["condition"].unique(maintain_order=True):
        table = answers.filter(pl.col("condition") == label)
        right = table["correct"].to_list()
        low, high = wilson(sum(right), len(right))
        lost = sum(a and not b for a, b in zip(base, right, strict=True))
        won = sum(b and not a for a, b in zip(base, right, strict=True))
        first, last = change_interval(lost, won, len(right))
        change = f"{100 * (won - lost) / len(right):+.0f} [{100 * first:+.0f}, {100 * last:+.0f}]"
        share = f"{100 * sum(right) / len(right):.0f} [{100 * low:.0f}, {100 * high:.0f}]"
        cells = [answers["task"][0], label, f"{len(right)}", share]
        cells += ["", ""] if label == "nothing" else [change, percent(table["mass"])]
        yield f"| {' | '.join(cells)} |"


def percent(shares: pl.Series) -> str:
    return f"{100 * sum(shares) / len(shares):.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny-long")
    parser.add_argument("-n", type=int, default=100, help="problems per task")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    made = [run(given.model, task, given.n) for task in FACTS]
    shares = pl.concat([parts for _, parts in made]).group_by("task", "part", maintain_order=True)
    page = [
        "# Sinks and needles apart", "",
        f"Made by `python -m lab.experiments.needles -n {given.n}` on {given.model}.", "",
        *__doc__.strip().split("\n")[2:], "",
        "| task | hidden | n | right, % [95 %] | change | attention removed |", "|---|---|---|---|---|---|",
        *(line for answers, _ in made for line in lines_of(answers)), "",
        "What the strongest sixteenth of a head's keys is, with nothing hidden (10 problems per task):", "",
        "| task | part | of those keys | of what they draw | of all positions |", "|---|---|---|---|---|",
        *(
            f"| {task} | {part} | {' | '.join(percent(table[name]) for name in ('keys', 'mass', 'canvas'))} |"
            for (task, part), table in shares
        ), "",
    ]  # fmt: skip
    given.out.write_text("\n".join(page), encoding="utf-8")
    pl.concat([answers for answers, _ in made]).write_parquet(given.out.with_suffix(".parquet"), compression="zstd")
    print("\n".join(page))


if __name__ == "__main__":
    main()
