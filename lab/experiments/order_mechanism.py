"""Is confidence a buffer, on a model with sinks? `python -m lab.experiments.order_mechanism`.

smol-dream decodes with its strong sinks hidden, its top keys, a random key in their place, and nothing. There are four orders
of commits: by confidence, at random, left to right (one token per step each), and by a threshold.
Of every run: right answers, the probability of the token that was committed, and the step at which each position was. The
second forward sees the same canvas with and without masking, so that the change of confidence there is the effect of masking
alone. A position depended on a sink by what it paid, in the clean run, to the keys that masking takes; the positions of one
problem are split at their median. If confidence were a buffer, it would fall more, and commits would come later, in the half
that depended more. Random order would lose more answers than order by confidence.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import torch
from torch import Tensor

import sinkscope as sk
from sinkscope.attention.call import Call, CallResult, Tap
from sinkscope.attention.forward import seeded
from sinkscope.attention.patch import patched
from sinkscope.decoding import decode
from sinkscope.decoding.canvas import Step
from sinkscope.interventions import Intervention
from sinkscope.interventions.base import Selector
from sinkscope.interventions.memory import Memory
from sinkscope.models.model import Model, pad
from sinkscope.statistics import bootstrap, change_interval
from sinkscope.tasks import Problem, problems

OUT = Path("lab/results/pair/order-mechanism.md")
LENGTH, BLOCK = 40, 8
STRONG = sk.HeadShare(0.3)
ORDERS = {
    "confidence": sk.Decode.llada(LENGTH, BLOCK, LENGTH, stop="eos", noise="per_row"),
    "random": sk.Decode.llada(LENGTH, BLOCK, LENGTH, confidence="random", stop="eos", noise="per_row"),
    "left to right": sk.Decode.llada(LENGTH, 1, LENGTH, noise="per_row"),
    "threshold 0.9": sk.Decode.parallel(LENGTH, BLOCK, threshold=0.9, stop="eos", noise="per_row"),
}
MASKS: dict[str, Selector] = {
    "strong sinks": sk.MaskSinks(1, above=STRONG),
    "top key": sk.MaskSinks(1),
    "random key": sk.MaskRandom(1, per="model", persist=True, aligned=True),
}
LOOKED = 1  # the first forward that masking changes


@dataclass
class Paid(Tap):
    """What every query pays, at the second forward of a clean run, to the keys that a selector would hide there."""

    of: Selector
    memory: Memory = field(default_factory=Memory)
    paid: Tensor | None = None  # [batch, query], mean over heads, summed over layers
    layers: int = 0

    def change(self, call: Call) -> list[object]:  # type: ignore[override]
        self.memory.open(call)
        if call.forward is not None and call.forward.step == LOOKED:
            self._add(call, self.of.select(call, self.memory))
        return []

    def needs_sums(self, call: Call) -> bool:
        return True

    def take(self, call: Call, outcome: CallResult) -> None:
        self.memory.keep(call, outcome, self.of.maps())

    def done(self, call: Call) -> None:
        self.memory.close(call)

    def _add(self, call: Call, picked: Tensor | None) -> None:
        self.layers += 1
        if picked is None:
            return
        keys = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
        scores = call.q.float() @ keys.float().mT * (call.q.shape[-1] ** -0.5 if call.scale is None else call.scale)
        if call.real_keys is not None:
            scores = scores.masked_fill(~call.real_keys[:, None, None], -torch.inf)
        paid = (scores.softmax(-1) * picked[:, :, None]).sum(-1).mean(1)
        self.paid = paid if self.paid is None else self.paid + paid


@dataclass
class Watch:
    """The confidence at the second forward, the step of every commit, and the confidence at it; [batch, position] each."""

    second: Tensor | None = None
    at: Tensor | None = None
    sure: Tensor | None = None

    def __call__(self, step: Step) -> None:
        if self.at is None or self.sure is None:
            self.at, self.sure = torch.full(step.canvas.shape, -1), torch.full(step.canvas.shape, torch.nan)
        self.at[step.committed] = step.index
        self.sure[step.committed] = step.confidence[step.committed]
        if step.index == LOOKED:
            self.second = step.confidence.clone()


class _SeenError(Exception):
    """The forward that was asked for is over, and what follows is not needed."""


def _until_looked(step: Step) -> None:
    if step.index == LOOKED:
        raise _SeenError


def run(model: Model, chunk: Sequence[tuple[int, Problem]], order: str) -> list[dict[str, object]]:
    """A row per problem and masking, under one order of commits."""
    ids, mask = pad([model.encode(problem.prompt) for _, problem in chunk], model)
    settings, width = ORDERS[order], ids.shape[1]
    # Random order has a confidence of its own, which says nothing of the model: there only answers and steps are compared.
    says = order != "random"

    def answered(*changes: Intervention) -> tuple[Watch, list[bool], int]:
        watch = Watch()
        with sk.intervene(model, *changes), seeded(tuple(number for number, _ in chunk)):
            done = decode(model, ids, settings, attention_mask=mask, history=False, on_step=watch)
        right = [problem.check(model.decode_text(row)) for (_, problem), row in zip(chunk, done.returned, strict=True)]
        return watch, right, done.forwards

    clean, right, forwards = answered()
    rows: list[dict[str, object]] = []
    for name, selector in MASKS.items():
        tap = Paid(selector)
        with suppress(_SeenError), patched(model.module, tap), seeded(tuple(number for number, _ in chunk)):
            decode(model, ids, settings, attention_mask=mask, history=False, on_step=_until_looked)
        depends = torch.zeros(ids.shape[0], width + LENGTH) if tap.paid is None else tap.paid / tap.layers
        depends = depends.roll(1, dims=1) if model.shift else depends
        masked, after, more = answered(selector)
        for row, (number, problem) in enumerate(chunk):
            found: dict[str, object] = {
                "order": order, "mask": name, "problem": number, "task": problem.kind, "clean": right[row],
                "masked": after[row], "forwards_clean": forwards, "forwards_masked": more,
            }  # fmt: skip
            rows.append(found | _compared(row, depends[row], clean, masked, says))
    return rows


def _compared(row: int, depends: Tensor, clean: Watch, masked: Watch, says: bool) -> dict[str, float]:
    """Changes by masking in the half of the positions that depended more ("high") and in the other ("low")."""
    assert clean.at is not None and masked.at is not None and clean.sure is not None and masked.sure is not None
    found: dict[str, float] = {}
    both = (clean.at[row] > 0) & (masked.at[row] > 0)  # what the first forward commits, masking does not change
    if says:
        found["sure_at_commit"] = float((masked.sure[row] - clean.sure[row])[both].mean())
    for half, places in _halves(depends, both).items():
        found[f"delay_{half}"] = float((masked.at[row] - clean.at[row])[places].double().mean())
    if says and clean.second is not None and masked.second is not None:
        there = clean.second[row].isfinite() & masked.second[row].isfinite()
        for half, places in _halves(depends, there).items():
            found[f"confidence_{half}"] = float((masked.second[row] - clean.second[row])[places].double().mean())
            found[f"depends_{half}"] = float(depends[places].mean())
    return found


def _halves(depends: Tensor, there: Tensor) -> dict[str, Tensor]:
    places = there.nonzero().squeeze(-1)
    order = places[depends[places].double().argsort(stable=True, descending=True)]
    size = len(order) // 2
    return {"high": order[:size], "low": order[len(order) - size :]} if size else {}


def _mean(values: pl.Series, scale: float = 1.0) -> str:
    known = [value * scale for value in values.drop_nulls().drop_nans().to_list()]
    if not known:
        return "–"
    low, high = bootstrap(known)
    return f"{sum(known) / len(known):+.2f} [{low:+.2f}, {high:+.2f}]"


def line(table: pl.DataFrame) -> str:
    lost = int((table["clean"] & ~table["masked"]).sum())
    won = int((~table["clean"] & table["masked"]).sum())
    n = table.height
    low, high = change_interval(lost, won, n)
    cells = [
        f"{100 * int(table['clean'].sum()) / n:.0f} %",
        f"{100 * (won - lost) / n:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]",
    ]
    for name, scale in (("confidence", 100.0), ("delay", 1.0)):
        for half in ("high", "low"):
            cells.append(_mean(table[f"{name}_{half}"], scale))
        cells.append(_mean(table[f"{name}_high"] - table[f"{name}_low"], scale))
    return (
        f"| {table['order'][0]} | {table['mask'][0]} | {n} | "
        + " | ".join([*cells, _mean(table["sure_at_commit"], 100)])
        + " |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=100, help="problems per task")
    parser.add_argument("--tasks", default="arithmetic,stories")
    parser.add_argument("--model", default="smol-dream")
    parser.add_argument("--chunk", type=int, default=10)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = sk.load(given.model, dtype="bfloat16" if given.model.startswith("smol") else None)
    rows: list[dict[str, object]] = []
    for order in ORDERS:
        for task in given.tasks.split(","):
            asked = sorted(enumerate(problems(task, n=given.n)), key=lambda pair: len(pair[1].prompt))
            for first in range(0, len(asked), given.chunk):
                rows += run(model, asked[first : first + given.chunk], order)
        print(order, flush=True)
    names = [f"{name}_{half}" for name in ("confidence", "delay", "depends") for half in ("high", "low")] + [
        "sure_at_commit"
    ]
    table = pl.DataFrame([{**dict.fromkeys(names), **row} for row in rows], infer_schema_length=None)
    table = table.with_columns(pl.col(names).cast(pl.Float64))
    head = ["order of commits", "hidden", "n", "right, nothing hidden", "points [95 %]", "confidence, more dependent half (points)",
            "less dependent half", "difference", "delay, more dependent half (steps)", "less dependent half", "difference",
            "confidence at commit"]  # fmt: skip
    command = f"python -m lab.experiments.order_mechanism -n {given.n} --tasks {given.tasks} --model {given.model}"
    parts = [part for _, part in table.group_by("order", "mask", maintain_order=True)]
    page = ["# Sinks hidden under four orders of commits", "", f"Made by `{command}`.", "", *__doc__.strip().split("\n")[2:], "",
            f"| {' | '.join(head)} |", "|" + "---|" * len(head), *map(line, parts), ""]  # fmt: skip
    given.out.write_text("\n".join(page), encoding="utf-8")
    table.write_parquet(given.out.with_suffix(".parquet"), compression="zstd")
    print(*map(line, parts), sep="\n")


if __name__ == "__main__":
    main()
