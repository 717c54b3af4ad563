"""Can the step be read off a masked position, by linear probes on exported activations, layer by layer?

    python -m lab.experiments.clock tiny-llada tiny-dream -n 40 --out FOLDER

`sk.activations` exports what leaves every layer at the masked positions of n generations; of each problem and step one
position is drawn. A ridge probe then predicts the share of the steps that are over, on problems that it has not seen.
Writes MODEL.json: per layer r², its 95 % interval over problems, and two controls: labels shuffled within problems, and the
position alone (its distance from the start of the answer, and that squared).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sinkscope as sk
from lab.experiments.carry.probe import drawn_r2, probe
from sinkscope.tracing.states import Activations


def drawn_rows(shards: Activations, seed: int) -> tuple[dict[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Vectors per place [row, width], and prompt, step and position of each row: one of each prompt and step."""
    vectors: dict[str, list[torch.Tensor]] = {}
    beside: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(seed)
    for shard in shards:  # one in memory at a time; a step of a batch is never cut by a shard
        about = torch.stack([shard.pop(name) for name in ("prompt", "step", "position")], 1)
        order = torch.randperm(len(about), generator=generator)
        first = order[list({tuple(pair): at for at, pair in enumerate(about[order, :2].tolist())}.values())]
        beside.append(about[first])
        for name in (name for name in shard if name.startswith("layers.")):
            vectors.setdefault(name, []).append(shard[name][first].float())
    return {name: torch.cat(parts).double().numpy() for name, parts in vectors.items()}, torch.cat(beside).numpy()


def study(name: str, count: int, task: str, seed: int) -> dict[str, Any]:
    model = sk.load(name)
    prompts = [problem.prompt for problem in sk.tasks.problems(task, n=count, split="test", seed=seed)]
    with tempfile.TemporaryDirectory() as folder:
        shards = sk.activations(model, prompts, at="masked", out=Path(folder) / "shards", shard=8 << 20)
        vectors, about = drawn_rows(shards, seed)
    groups, steps = about[:, 0].astype(np.int64), about[:, 1].astype(np.float64)
    labels = steps / np.array([steps[groups == group].max() for group in groups]).clip(min=1)
    starts = np.array([len(model.encode(prompts[group])[0]) for group in groups])
    place = (about[:, 2] - starts).astype(np.float64)
    alone = probe(np.stack([place, place**2], 1), labels, groups, shuffles=2, seed=seed).r2
    rows = []
    for layer in range(len(vectors)):
        found = probe(vectors[f"layers.{layer}.resid_post"], labels, groups, seed=seed)
        low, high = np.nanquantile(drawn_r2(labels, found.predicted, groups, seed=seed), [0.025, 0.975])
        rows.append(
            {"layer": layer, "r2": found.r2, "low": float(low), "high": float(high), "shuffled": found.shuffled_high}
        )
    return {
        "model": model.identity(), "task": task, "problems": count, "rows": len(labels), "place alone": alone, "layers": rows,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="diffusion models")
    parser.add_argument("-n", type=int, default=40)
    parser.add_argument("--task", default="arithmetic")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.models:
        found = study(name, given.n, given.task, given.seed)
        (given.out / f"{Path(name).name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(name, *(f"layer {row['layer']}: {row['r2']:.2f}" for row in found["layers"]), sep=", ")


if __name__ == "__main__":
    main()
