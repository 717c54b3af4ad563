"""Does a sink that moves follow the frontier of commits?

Dream-like decoding at T = 0.1, at T = 0, and in random order:

    python -m lab.experiments.decoding_order > lab/results/decoding-order.md

At T = 0.1 many confidences are 1, and of equal ones the leftmost is committed: decoding is then nearly left to right. If
a sink moves because the frontier does, it must follow the leftmost open position there, and must not in random order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import torch

import sinkscope as sk
from sinkscope.statistics import bootstrap
from sinkscope.tracing.dynamics import decoding_order

MODELS = ("tiny-dream", "smol-dream", "tiny-llada")
LENGTH = 48
# One commit per step in all of them; tiny-llada has LLaDA's confidence and one block of the whole answer.
DREAM, LLADA = partial(sk.Decode.dream, LENGTH, LENGTH, top_k=None), partial(sk.Decode.llada, LENGTH, LENGTH, LENGTH)
WAYS: dict[str, dict[str, sk.Decode]] = {
    "dream": {
        "T = 0.1": DREAM(algorithm="entropy", temperature=0.1, top_p=0.9),
        "T = 0": DREAM(algorithm="entropy", temperature=0.0),
        "random order": DREAM(algorithm="origin", temperature=0.0),
    },
    "llada": {"T = 0": LLADA(), "random order": LLADA(confidence="random")},
}
FIELDS = ("ties", "leftmost", "follows_leftmost", "follows_rightmost", "sink_to_leftmost")


def measured(trace: sk.Trace, part: slice) -> dict[str, float | None]:
    """Order of a generation, and how far the main sink went: its mean position in the last quarter less the first."""
    layers = range(trace.layers)[part]
    own = trace.select(layers=list(layers))
    sink = own.scores("all", "mean").mean((1, 2)).argmax(-1).double()
    quarter = max(len(sink) // 4, 1)
    drift = float(sink[-quarter:].mean() - sink[:quarter].mean())
    return {**asdict(decoding_order(own)), "drift": drift}


def shown(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    low, high = bootstrap(known)
    return f"{sum(known) / len(known):.2f} ({low:.2f} … {high:.2f})"


def rows(name: str, problems: int) -> list[str]:
    model = sk.load(name)
    found = []
    thirds = int(model.config.num_hidden_layers) // 3
    parts = {"first third": slice(0, thirds), "last third": slice(-thirds, None)}
    for way, settings in WAYS[model.family.name].items():
        traces = []
        for problem in sk.tasks.problems("arithmetic", n=problems, split="test", seed=0):
            traces.append(sk.trace(model, problem.prompt, settings))
        for part, layers in parts.items():
            each = [measured(trace, layers) for trace in traces]
            cells = [shown([one[field] for one in each]) for field in (*FIELDS, "drift")]
            found.append("| " + " | ".join([name, way, part, *cells]) + " |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        f"`python -m lab.experiments.decoding_order --problems {asked.problems} --models {' '.join(asked.models)}`: "
        f"{asked.problems} problems of arithmetic, {LENGTH} tokens, one commit per step; means with 95 % bootstrap intervals.",
        "",
        "| model | decoding | layers | ties | leftmost | follows leftmost | follows rightmost | sink − leftmost | drift |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in asked.models:
        lines += rows(name, asked.problems)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
