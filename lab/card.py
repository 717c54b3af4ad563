"""Put a trained model into the zoo with its card: `python -m lab.card RUN --scores scores.json`.

The card says what the model learned from, how, for how long, what it can do, and what it is not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab.adapter_card import publish_adapter
from lab.checkpoint import CURVE, RECIPE, read_curve
from lab.checks import read_yaml
from lab.errors import TrainingError
from lab.export import ZOO
from lab.front_matter import front_matter
from lab.recipe import Recipe, recipe_from_dict
from sinkscope.errors import SinkscopeError
from sinkscope.models.adapters import CONFIG as ADAPTER

_WHAT = {
    "llama": "autoregressive: next token, causal attention, stored as a Llama checkpoint",
    "llada": "masked diffusion from scratch, bidirectional attention, stored as a LLaDA checkpoint",
    "dream": "masked diffusion that started from tiny-llama's weights, shifted targets, stored as a Dream checkpoint",
    "mmada": "tiny-llada trained on with pictures as discrete codes, stored as an MMaDA checkpoint",
}
_PROBES = "| step | loss | sinks: share of (layer, head) | strongest (uniform = 1) | sinks at position 0 |"


def card(
    recipe: Recipe,
    curve: list[dict[str, Any]],
    scores: list[dict[str, Any]],
    parameters: int,
    before: dict[str, float] | None = None,
) -> str:
    """The model card as Markdown; `before` has the minutes of the runs that this one builds on."""
    last = _minutes(curve)
    parts = {**(before or {}), recipe.name: last}
    whole = " + ".join(f"{minutes:.0f} ({name})" for name, minutes in parts.items())
    reached = max((line["step"] for line in curve), default=0)
    start = f" Starts from `{recipe.start}`." if recipe.start else ""
    kinds = ", ".join(f"{kind} ×{share:g}" for kind, share in recipe.data.kinds.items())
    objective = recipe.objective
    if recipe.causal:
        how = f"next token; prompt tokens weigh {objective.prompt:g}, answer tokens 1"
    else:
        how = (
            f"masked tokens at ratios spread evenly over each batch, loss = mean over the masked (the 1/t weight); "
            f"{objective.whole:.0%} of the rows are masked whole, {objective.blockwise:.0%} as block decoding meets them, "
            f"the rest in the canvas only; end-of-text filling weighs {objective.padding:g}"
        )
    text = [
        *front_matter("autoregressive" if recipe.causal else "diffusion"),
        f"# {recipe.name}",
        "",
        f"{parameters:,} parameters: {_WHAT[recipe.family]}.{start}",
        "One of four models of about the same size, with the same data generators and tokenizer, that differ in their "
        "training history.",
        "",
        "## What it can do",
        "Greedy, unseen test problems (content never occurs in training), stored fp16 weights computed in fp32, with the "
        "decode settings in `config.json` (`sinkscope_decode`). Percent solved and Wilson 95 % interval:",
        "",
        "| kind | n | solved | interval |",
        "|---|---|---|---|",
        *(
            f"| {s['kind']} | {s['n']} | {100 * s['accuracy']:.1f} % | {100 * s['low']:.1f}–{100 * s['high']:.1f} % |"
            for s in scores
        ),
        "",
        f"Made by `python -m lab.evaluate {recipe.name} -n {scores[0]['n'] if scores else 500}`.",
        "",
        "## How it was made",
        f"- Recipe: `lab/recipes/{recipe.name}.yaml`; redo it with {_redone(parts)}.",
        f"- Data: the package's own generators, train split, {kinds}; all difficulties; seed {recipe.seed}.",
        f"- Objective: {how}.",
        f"- {reached} of {recipe.steps} steps of {recipe.batch} problems; {recipe.optimiser.matrices} "
        f"{recipe.optimiser.matrix_rate:g} for matrices, AdamW {recipe.optimiser.rate:g} for the rest; "
        f"running mean {recipe.optimiser.ema:g}.",
        f"- {sum(parts.values()):.0f} minutes of one CPU core, processor time of the training steps: {whole}.",
        "",
        "## While it learned",
        _PROBES,
        "|---|---|---|---|---|",
        *_probe_rows(curve),
        "",
        "Measured on a fixed probe batch, Threshold(3, unit sum). For a causal model the first positions are seen by more "
        "queries than others, so even uniform attention gives position 0 a column sum of about ln(length) + 0.58. "
        f"The whole curve: `lab/results/training/{recipe.name}.jsonl`.",
        "",
        "## What it is not",
        "A language model. It knows some 450 tokens, six kinds of small problems (seven with pictures) and nothing else; "
        "text outside of them gives nonsense. It is made for looking at attention on a laptop, and what is found in it "
        "need not hold in models a thousand times its size.",
        "",
    ]
    return "\n".join(text)


def _redone(names: Iterable[str]) -> str:
    """Commands that make the model again, what it builds on first: each looks for its start in the folder beside its own."""
    return ", ".join(f"`python -m lab.train {name} --out runs/{name}`" for name in names)


def _minutes(curve: list[dict[str, Any]]) -> float:
    return max((float(line["seconds"]) for line in curve if "seconds" in line), default=0.0) / 60


def _before(run: Path, recipe: Recipe) -> dict[str, float]:
    """Minutes of the runs beside this one that it builds on, first things first."""
    earlier = run.parent / str(recipe.start)
    if recipe.start is None or not (earlier / RECIPE).is_file():
        return {}
    parent = recipe_from_dict(read_yaml(earlier / RECIPE), where=str(earlier))
    return {**_before(earlier, parent), parent.name: _minutes(read_curve(earlier / CURVE))}


def _probe_rows(curve: list[dict[str, Any]], most: int = 10) -> list[str]:
    probes = [line for line in curve if "sink_share" in line]
    losses = {line["step"]: line["loss"] for line in curve if "loss" in line}
    if len(probes) > most:  # evenly spread, with the first and the last
        places = sorted({round(i * (len(probes) - 1) / (most - 1)) for i in range(most)})
        probes = [probes[place] for place in places]
    return [
        f"| {p['step']} | {losses[p['step']]:.3f} | {p['sink_share']:.3f} | {p['strongest']:.1f} | {p['sinks_at_begin']:.3f} |"
        if p["step"] in losses
        else f"| {p['step']} | – | {p['sink_share']:.3f} | {p['strongest']:.1f} | {p['sinks_at_begin']:.3f} |"
        for p in probes
    ]


def publish(
    run: Path, scores: list[dict[str, Any]], zoo: Path = ZOO, results: Path | None = None, notes: str = ""
) -> Path:
    """Copy a run's exported model into the zoo, write its card, and keep its curve among the results."""
    from sinkscope.models.load import load

    model = run / "model"
    if (model / ADAPTER).is_file():
        return publish_adapter(run, scores, zoo, results, notes)
    if not (model / "config.json").is_file():
        raise TrainingError(f"{run} has no exported model; let the training end first.")
    recipe = recipe_from_dict(read_yaml(run / RECIPE), where=str(run))
    curve = read_curve(run / CURVE)
    scores = [{**score, "model": recipe.name} for score in scores]  # whatever folder they were measured in
    parameters = sum(p.numel() for p in load(model).module.parameters())
    target = zoo / recipe.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(model, target)
    (target / "README.md").write_text(card(recipe, curve, scores, parameters, _before(run, recipe)), encoding="utf-8")
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        shutil.copy(run / CURVE, results / f"{recipe.name}.jsonl")
        (results / f"{recipe.name}.scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: publish one run."""
    parser = argparse.ArgumentParser(prog="python -m lab.card", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished training run")
    parser.add_argument("--scores", type=Path, required=True, help="what evaluate --out wrote")
    parser.add_argument("--zoo", type=Path, default=ZOO)
    parser.add_argument("--results", type=Path, default=None, help="folder for the curve and the scores")
    parser.add_argument(
        "--notes", type=Path, default=None, help="file with a passage for an adapter's card, in Markdown"
    )
    given = parser.parse_args(arguments)
    try:
        notes = "" if given.notes is None else given.notes.read_text(encoding="utf-8")
        scores = json.loads(given.scores.read_text(encoding="utf-8"))
        print(publish(given.run, scores, given.zoo, given.results, notes))
    except (SinkscopeError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
