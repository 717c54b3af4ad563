"""What hooks cost: generation and tracing with and without them, taken in turns.

python benchmarks/hooks.py [MODEL] [--rounds 15] [--write]     # --write: into lab/results/hooks.md
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import sinkscope as sk

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "hooks.md"
PROMPT = "Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?"
ATTENTION = ["scores", "pattern", "head_out"]
PLACES = ["resid_pre", "attn_out", "mlp_out", "resid_post", *"qkvz"]
Side = tuple[sk.Model, Callable[[], Any]]  # a model, and what is set on it


def read(activation: Any, context: sk.HookContext) -> None:
    """A hook that looks at what it is given, and at the step."""
    _ = context.step, context.groups


def ask(activation: Any, context: sk.HookContext) -> None:
    _ = context.sinks


def time_sides(
    sides: dict[str, Side], run: Callable[[sk.Model], object], rounds: int
) -> dict[str, tuple[float, float]]:
    """Side → median seconds of the processor, and the median ratio to the first side of the same round."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in sides if number % 2 else reversed(sides):
            model, hooks = sides[name]
            start = time.process_time()
            with hooks():
                run(model)
            if number:  # the first round warms up
                times[name].append(time.process_time() - start)
    first = next(iter(times.values()))
    found = {}
    for name, seconds in times.items():
        ratios = [one / other for one, other in zip(seconds, first, strict=True)]
        found[name] = statistics.median(seconds), statistics.median(ratios)
    return found


def write_table(title: str, found: dict[str, tuple[float, float]]) -> list[str]:
    rows = [f"| {name} | {1000 * seconds:.0f} | {ratio:.3f} × |" for name, (seconds, ratio) in found.items()]
    return [f"## {title}", "", "| hooks | ms | against none |", "|---|---|---|", *rows, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="tiny-llada")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    torch.set_num_threads(1)
    fresh, used = sk.load(given.model), sk.load(given.model)
    words = {"length": 32, **({} if fresh.causal else {"steps": 32})}
    with sk.hook(used, [f"layers.0.{place}" for place in ATTENTION], read):
        used.generate(PROMPT, **words)
    generate = {
        "none, on a model that never had one": (fresh, nullcontext),
        "none, on a model that had some": (used, nullcontext),
        "the pattern of one layer": (used, lambda: sk.hook(used, "layers.0.pattern", read)),
        "scores, pattern and results of every layer": (used, lambda: sk.hook(used, ATTENTION, read)),
    }
    trace = {
        "none": (fresh, nullcontext),
        "every layer": (fresh, lambda: sk.hook(fresh, "resid_post", read)),
        "every layer, sinks": (fresh, lambda: sk.hook(fresh, "resid_post", ask)),
        "all eight places": (fresh, lambda: sk.hook(fresh, PLACES, read)),
    }
    lines = [
        "# What hooks cost", "",
        f"`python benchmarks/hooks.py {given.model} --rounds {given.rounds} --write`; processor time, medians of turns.", "",
        *write_table("Generation", time_sides(generate, lambda model: model.generate(PROMPT, **words), given.rounds)),
        *write_table("Tracing", time_sides(trace, lambda model: sk.trace(model, PROMPT, **words), given.rounds)),
    ]  # fmt: skip
    print("\n".join(lines))
    if given.write:
        RESULTS.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
