"""Do sinks and outlier channels go together, and what does taking one away do to the other?

    python -m lab.experiments.channels tiny-llada tiny-llama -n 32 --out FOLDER

Every problem is traced untouched, without its largest channel (and with as much taken from a random one), and without its
top key in every head (and without random keys of their mass). Writes MODEL.json for each model: per layer the largest channel, its
size at sinks and at other positions. Per condition it has the change, paired over problems with a 95 % bootstrap interval, of
  top key      share of a head's attention on its top key, mean over steps, layers and heads
  strong       share of heads and steps whose top key has more than 0.3
  channel      size (root mean square) of the largest channel over that of the whole state, mean over steps and layers
  right        whether the answer is right (answers with n ≥ 200: sinkscope study lab/experiments/channels.yaml)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sinkscope as sk
from sinkscope.statistics import bootstrap

CONDITIONS: dict[str, list[Any]] = {
    "none": [],
    "without the top channel": [sk.AblateChannels(top=1)],
    "without as much of a random channel": [sk.AblateChannels(top=1, of="random")],
    "without the top key": [sk.MaskSinks(k=1)],
    "without random keys of its mass": [sk.MaskRandom(k=1, match="mass")],
}
KEEP = sk.Keep(channels=8, hidden_norms=True)


def measures(trace: sk.Trace, right: bool) -> dict[str, float]:
    shares = trace.scores(unit="mean").amax(-1)  # [step, layer, head]
    if trace.causal:
        shares = shares[1:] if trace.steps > 1 else shares  # the first step is the whole prompt
    assert trace.channel_values is not None and trace.hidden_norms is not None
    values, norms = (
        trace.channel_values[:-1, :-1, 0],
        trace.hidden_norms[:-1, 1:],
    )  # what leaves a layer enters the next
    there = norms > 0
    part = (values.square() * there).sum(-1) / (norms.square() * there).sum(-1).clamp(min=1e-9)
    return {
        "top key": float(shares.mean()), "strong": float((shares > 0.3).float().mean()),
        "channel": float(part.clamp(min=0).sqrt().mean()), "right": float(right),
    }  # fmt: skip


def layers_of(traces: list[sk.Trace]) -> list[dict[str, Any]]:
    """Per layer: the channel that is largest most often, how often, and its size at sinks and elsewhere, over problems."""
    tables = [trace.outliers() for trace in traces]
    found = []
    for layer in range(traces[0].layers):
        first = torch.cat([trace.channels[: 1 if trace.causal else None, layer, 0] for trace in traces])  # type: ignore[index]
        channel = int(first.mode().values)
        count = int((first == channel).sum())
        rows = [table.filter((table["layer"] == layer) & (table["channel"] == channel)) for table in tables]
        sizes = [row.row(0, named=True) for row in rows if len(row)]
        pairs = [(one["at_sinks"], one["elsewhere"]) for one in sizes if one["at_sinks"] and one["elsewhere"]]
        log_ratio = np.log([at / elsewhere for at, elsewhere in pairs])
        spread = (log_ratio.mean(), *bootstrap(log_ratio.tolist(), 2000, 0)) if len(pairs) > 1 else None
        found.append({
            "layer": layer, "channel": channel, "largest in": count / len(first), "problems": len(pairs),
            "at sinks": float(np.mean([at for at, _ in pairs])) if pairs else None,
            "elsewhere": float(np.mean([other for _, other in pairs])) if pairs else None,
            "ratio": spread and [float(np.exp(x)) for x in spread],
        })  # fmt: skip
    return found


def study(name: str, count: int, task: str, words: dict[str, Any]) -> dict[str, Any]:
    model = sk.load(name)
    problems = list(sk.tasks.problems(task, n=count, split="test", seed=0))
    rows: dict[str, list[dict[str, float]]] = {}
    untouched: list[sk.Trace] = []
    for condition, interventions in CONDITIONS.items():
        rows[condition] = []
        for problem in problems:
            trace = sk.trace(model, problem.prompt, interventions=interventions, keep=KEEP, **words)
            rows[condition].append(measures(trace, problem.check(trace.text)))
            if condition == "none":
                untouched.append(trace)
        print(f"{name}, {condition}: {len(problems)} problems", flush=True)
    changes: dict[str, dict[str, Any]] = {}
    for condition, measured in rows.items():
        for measure in rows["none"][0]:
            values = np.array([row[measure] for row in measured])
            before = np.array([row[measure] for row in rows["none"]])
            change = values - before
            interval = bootstrap(change, 2000, 0) if len(change) > 1 else (None, None)
            changes.setdefault(condition, {})[measure] = {
                "mean": float(values.mean()), "change": float(change.mean()), "interval": list(interval),
            }  # fmt: skip
    return {
        "model": model.identity(),
        "task": task,
        "problems": count,
        "layers": layers_of(untouched),
        "conditions": changes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("--task", default="arithmetic")
    parser.add_argument("--length", type=int, default=None)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.models:
        found = study(name, given.n, given.task, {} if given.length is None else {"length": given.length})
        (given.out / f"{Path(name).name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
