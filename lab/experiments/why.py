"""Why are keys sinks?

The strongest sinks of each layer, each against its matched keys, over many problems:

    python -m lab.experiments.why smol-llama smol-dream -n 16 --out FOLDER

Of every problem one step is looked at (--at, a share of the generation), and in each layer the --top strongest sinks. Writes
MODEL.json: means per layer, with 95 % bootstrap intervals over problems. They are of the lead in score (nats), what of it is by
angle and by norm, what is content (positions removed) and what the rotary embedding, and the norms of values. Then which parts
below made the key, summed over layers into embedding, attention, MLP and bias.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import sinkscope as sk
from sinkscope.errors import TraceError
from sinkscope.statistics import bootstrap

KEEP = sk.Keep()


def row(found: Any) -> dict[str, float]:
    lead = found.score - found.matched_score
    content = found.content - found.matched_content
    gains = [(one["source"], one["score"] - one["matched"]) for one in found.sources.iter_rows(named=True)]
    parts = ("embedding", "attention", "mlp", "bias")
    made = {part: sum(gain for source, gain in gains if source.startswith(part)) for part in parts}
    return {
        "lead": lead, "by angle": found.by_angle, "by norm": found.by_norm, "content": content, "rotary": lead - content,
        "value norm ratio": found.value_norm / max(found.matched_value_norm, 1e-9), **made,
    }  # fmt: skip


def sinks_of(trace: sk.Trace, step: int, top: int) -> list[tuple[int, int, int]]:
    """(layer, head, key) of the strongest sinks of each layer at a step."""
    table = trace.sinks()
    here = table.filter(table["step"] == step).sort("score", descending=True)
    return [
        (one["layer"], one["head"], one["position"])
        for layer in range(trace.layers)
        for one in here.filter(here["layer"] == layer).head(top).iter_rows(named=True)
    ]


def study(name: str, given: Any) -> dict[str, Any]:
    model = sk.load(name)
    found: dict[int, dict[int, list[dict[str, float]]]] = {}  # layer → problem → sinks
    alone = 0
    for number, problem in enumerate(sk.tasks.problems(given.task, n=given.n, split="test", seed=0)):
        trace = sk.trace(model, problem.prompt, keep=KEEP)
        step = min(int(given.at * trace.steps), trace.steps - 1)
        for layer, head, key in sinks_of(trace, step, given.top):
            try:
                found.setdefault(layer, {}).setdefault(number, []).append(
                    row(trace.why(step, layer, head, key, model=model))
                )
            except TraceError:  # every key of its state is a sink
                alone += 1
        print(f"{name}: {number + 1} of {given.n} problems", flush=True)
    layers = []
    for layer, problems in sorted(found.items()):
        rows = [rows for rows in problems.values() if rows]
        means = (
            {what: [float(np.mean([one[what] for one in part])) for part in rows] for what in rows[0][0]}
            if rows
            else {}
        )
        layers.append({
            "layer": layer, "problems": len(rows), "sinks": sum(map(len, rows)),
            **{what: [float(np.mean(values)), *bootstrap(values, 2000, 0)] for what, values in means.items()},
        })  # fmt: skip
    about = {"task": given.task, "problems": given.n, "at": given.at, "top": given.top, "without matched keys": alone}
    return {"model": model.identity(), **about, "layers": layers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-n", type=int, default=16)
    parser.add_argument("--task", default="arithmetic")
    parser.add_argument("--at", type=float, default=0.5)
    parser.add_argument("--top", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.models:
        (given.out / f"{Path(name).name}.json").write_text(json.dumps(study(name, given), indent=1) + "\n")


if __name__ == "__main__":
    main()
