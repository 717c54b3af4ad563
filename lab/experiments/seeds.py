"""The same training with three seeds, and with other text: what one run can tell, and where sinks form.

    python -m lab.experiments.seeds train --out runs/seeds            # trains; rerun to resume
    sinkscope study results/seeds/seeds/study.yaml -o runs/seeds-study --workers 1
    python -m lab.experiments.seeds train --out runs/seeds --recipes seed-llada-letters
    sinkscope study lab/results/seeds/letters/study.yaml -o runs/letters-study --workers 1
    python -m lab.experiments.seeds table results/seeds/seeds/results.json lab/results/seeds/letters/results.json --write

The last takes results.json of runs, wherever they are kept, and writes lab/results/seeds/seeds.md.

Recipes: seed-llama and seed-llada (text as the tiny family writes it), seed-llada-bare (no punctuation, line breaks, chat
markers or begin token) and seed-llada-letters (every character a token). The weights are not kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lab.recipe import load_recipe
from lab.train import train
from sinkscope.sinks.kinds import STRUCTURAL

OUT = Path(__file__).parents[2] / "lab" / "results" / "seeds"
RECIPES = ("seed-llada", "seed-llada-bare", "seed-llama")
# What a condition is called in the table, by its label in results.json.
SHOWN = {
    "mask sinks K=1 clean by all rows": "top key",
    "mask sinks K=1 clean by all rows structural": "structural",
    "mask sinks K=1 clean by all rows content": "content",
    "mask random K=1 clean mass by all rows": "random, mass of the top key",
    "mask random K=1 clean mass by all rows structural": "random, mass of the structural key",
    "mask sinks K=1 clean by last row": "last row's top key",
    "mask positions 0 since the second forward": "position 0",
}


def train_all(recipes: Iterable[str], seeds: Iterable[int], out: Path) -> None:
    """One folder per recipe and seed, one seed of every recipe before the next; models under names that tell them apart."""
    for seed in seeds:
        for name in recipes:
            recipe = dataclasses.replace(load_recipe(name), seed=seed)
            known = out / "models" / f"{name}-{seed}"
            if not known.is_dir():
                shutil.copytree(train(recipe, out / f"{name}-{seed}", quiet=True), known)
            print(known, json.loads((out / f"{name}-{seed}" / "curve.jsonl").read_text().splitlines()[-1]), flush=True)


def kind_of(model: str) -> str:
    """The recipe of a model: its name without the seed."""
    return model.rpartition("-")[0]


def tables(runs: Iterable[Path]) -> str:
    """What masking costs and where sinks are, per seed and over the seeds; a run is its folder or its results.json."""
    files = [run / "results.json" if run.is_dir() else run for run in runs]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return "\n".join([*_masking(results), "", *_places(results), ""])


def _masking(results: list[dict[str, Any]]) -> list[str]:
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for row in (row for found in results for row in found["pooled"]):
        cells.setdefault(row["model"], {})[row["label"]] = row
    used = [label for label in SHOWN if any(label in rows for rows in cells.values())]
    lines = [
        "Right answers with nothing masked, and the change in points [95 % over problems] when one key per head is masked:",
        "",
        f"| model and seed | n | right | {' | '.join(SHOWN[label] for label in used)} |",
        f"|---|---|---|{'---|' * len(used)}",
    ]
    for model, rows in sorted(cells.items()):
        none = rows["none"]
        told = " | ".join(_change(rows.get(label)) for label in used)
        lines.append(f"| {model} | {none['n']} | {100 * none['accuracy']:.1f} % | {told} |")
    lines += [
        "",
        "Over the seeds: mean (lowest to highest), points:",
        "",
        f"| recipe | right | {' | '.join(SHOWN[label] for label in used)} |",
        f"|---|---|{'---|' * len(used)}",
    ]
    for kind in sorted({kind_of(model) for model in cells}):
        mine = [rows for model, rows in sorted(cells.items()) if kind_of(model) == kind]
        right = [100 * rows["none"]["accuracy"] for rows in mine]
        told = " | ".join(
            _spread([100 * rows[label]["difference"] for rows in mine if label in rows]) for label in used
        )
        lines.append(f"| {kind} ({len(mine)} seeds) | {_spread(right, '{:.1f}')} | {told} |")
    return lines


def _change(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    taken = "" if row.get("mass_share") is None else f", {100 * row['mass_share']:.1f} % taken"
    return f"{100 * row['difference']:+.1f} [{100 * row['difference_low']:+.1f}, {100 * row['difference_high']:+.1f}]{taken}"


def _spread(values: list[float], form: str = "{:+.1f}") -> str:
    if not values:
        return "–"
    return f"{form.format(np.mean(values))} ({form.format(min(values))} to {form.format(max(values))})"


def _places(results: list[dict[str, Any]]) -> list[str]:
    """Which kinds of token the sinks are, beside how often these stand on the canvas."""
    lines = [
        "Sinks (3 uniform shares above the mean of the other keys; autoregressive heads by their columns so far), and the kinds of",
        "token that they are (of an autoregressive model in single rows); in brackets the kind's share of the canvas:",
        "",
        "| model and seed | heads with a sink [95 %] | structural [95 %] | mask | end | line break | other structural | content |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for found in results:
        heads = {row["model"]: row for row in found["dynamics"] if row["condition"] == "none"}
        for model, row in sorted(heads.items()):
            kinds = [k for k in found["kinds"] if k["model"] == model and k["condition"] == "none"]
            other = [kind for kind in STRUCTURAL if kind not in ("mask", "end", "newline")]
            told = [_kinds(kinds, names) for names in (["mask"], ["end"], ["newline"], other)]
            told.append(_kinds(kinds, [k["kind"] for k in kinds if k["kind"] not in STRUCTURAL]))
            spans = row.get("intervals") or {}
            base = spans.get("structural_base")
            share = _interval(spans.get("structural")) + ("" if base is None else f" ({_percent(base['value'])})")
            lines.append(f"| {model} | {_interval(spans.get('with_sink'))} | {share} | {' | '.join(told)} |")
    return lines


def _interval(span: dict[str, float] | None) -> str:
    return "–" if span is None else f"{_percent(span['value'])} [{_percent(span['low'])}, {_percent(span['high'])}]"


def _kinds(rows: list[dict[str, Any]], names: list[str]) -> str:
    share, base = (sum(row[what] for row in rows if row["kind"] in names) for what in ("share", "base"))
    return f"{_percent(share)} ({_percent(base)})"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train")
    training.add_argument("--out", type=Path, default=Path("runs/seeds"))
    training.add_argument("--recipes", nargs="+", default=RECIPES)
    training.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    showing = verbs.add_parser("table")
    showing.add_argument("runs", nargs="+", type=Path)
    showing.add_argument("--write", action="store_true", help="into lab/results/seeds")
    given = parser.parse_args()
    if given.verb == "train":
        train_all(given.recipes, given.seeds, given.out)
        return
    text = tables(given.runs)
    print(text)
    if given.write:
        head = (
            "# Seeds of training\n\nMade by `python -m lab.experiments.seeds table`; its docstring says how the models"
            " are trained and judged.\n\n"
        )
        (OUT / "seeds.md").write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    main()
