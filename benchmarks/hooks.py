"""What hooks cost: a trace with a hook on every layer against one without, taken in turns.

python benchmarks/hooks.py [MODEL] [--rounds 15]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

import sinkscope as sk

PROMPT = "Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?"


def read(activation: Any, context: sk.HookContext) -> None:
    """A hook that looks at what it is given, and at the step."""
    _ = context.step, context.groups


def ask(activation: Any, context: sk.HookContext) -> None:
    _ = context.sinks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="tiny-llada")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = sk.load(given.model)
    hooks: dict[str, Callable[[], Any]] = {
        "none": nullcontext,
        "every layer": lambda: sk.hook(model, "resid_post", read),
        "every layer, sinks": lambda: sk.hook(model, "resid_post", ask),
        "all eight places": lambda: sk.hook(model, ["resid_pre", "attn_out", "mlp_out", "resid_post", *"qkvz"], read),
    }
    times: dict[str, list[float]] = {name: [] for name in hooks}
    for number in range(given.rounds + 1):
        for name in hooks if number % 2 else reversed(hooks):
            start = time.process_time()
            with hooks[name]():
                sk.trace(model, PROMPT, length=32, **({} if model.causal else {"steps": 32}))
            if number:  # the first round warms up
                times[name].append(time.process_time() - start)
    plain = times["none"]
    for name, found in times.items():
        ratios = [one / other for one, other in zip(found, plain, strict=True)]
        cost = f"{1000 * statistics.median(found):.0f} ms CPU, {statistics.median(ratios):.3f} ×"
        print(f"{given.model}, {name}: {cost} (median of {given.rounds})")


if __name__ == "__main__":
    main()
