"""The study `cache` as a page: accuracy against what is kept, with what it costs, in one figure and one table.

    sinkscope study cache -o runs/cache --no-report
    python benchmarks/cache.py runs/cache --cost --write   # times each cache; without --cost the last timing is used

What a cache costs is counted and timed on some problems of the study's first task, a batch at a time, one thread: columns
that a generation computes, keys that a query sees, and processor time, the conditions taking turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

from sinkscope.decoding import decode
from sinkscope.decoding.settings import Decode
from sinkscope.models import Model, load
from sinkscope.models.model import pad
from sinkscope.statistics import adjusted, paired, wilson
from sinkscope.study.schema import Study
from sinkscope.tasks import problems

OUT = Path(__file__).parents[1] / "lab" / "results"
WAYS = {
    "received": ("most attended", "#0072B2", "o"), "sinks": ("sinks first, then nearest", "#009E73", "s"),
    "recent": ("nearest", "#999999", "^"), "random": ("random", "#E69F00", "D"),
    "no_sinks": ("strongest sinks dropped", "#D55E00", "v"),
    "once": ("most attended, one look per answer", "#56B4E9", "P"),
    "elastic": ("most attended, a look when values drift", "#CC79A7", "X"),
}  # fmt: skip
SHARES = (1.0, 0.9375, 0.75, 0.5, 0.25, 0.125, 0.0625)
NAMES = {1.0: "1", 0.9375: "15/16", 0.75: "3/4", 0.5: "1/2", 0.25: "1/4", 0.125: "1/8", 0.0625: "1/16"}
# Who is compared with whom at the same share, beside everything with decoding without a cache.
AGAINST = (
    ("received", "random"), ("received", "recent"), ("sinks", "recent"), ("no_sinks", "random"), ("once", "received"),
    ("elastic", "received"),
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """Answers of one model under one condition: right or wrong, problem by problem, over the tasks that it can do."""

    right: tuple[bool, ...]

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(sum(self.right), len(self.right))


Points = dict[str, dict[tuple[str, float], Point]]  # model → (by, keep) → answers; ("none", 1.0) without a cache


# ---- what came out ----


def read(runs: list[Path]) -> Points:
    found: Points = {}
    for run in runs:
        results = json.loads((run / "results.json").read_text())
        rows = pl.read_parquet(run / "results.parquet")
        for cell in results["pooled"]:
            model, condition = cell["model"], cell["condition"]
            key = ("none", 1.0)
            if condition["name"] != "none":
                by = condition.get("by", "received")
                if condition.get("blocks") == "all":
                    by = "once" if condition.get("drift") is None else "elastic"
                key = (by, float(condition["keep"]))
            mine = rows.filter(
                (pl.col("model") == model)
                & (pl.col("condition") == cell["label"])
                & ~pl.col("task").is_in(list(cell["weak"]))
            )
            mine = mine.sort("task", "problem")
            mine_before = found.setdefault(model, {}).get(key, Point(()))  # another task of the same model
            found[model][key] = Point((*mine_before.right, *mine["correct"].to_list()))
    return found


def point(points: dict[tuple[str, float], Point], by: str, keep: float) -> Point | None:
    """All ways of choosing are one where everything is kept."""
    return points.get(("received" if keep == 1 and by not in ("once", "elastic") else by, keep))


# ---- what it costs ----


@contextmanager
def counted(model: Model) -> Iterator[dict[str, float]]:
    """Columns that forwards compute, and pairs of query and key that they compare in each head."""
    count = {"forwards": 0.0, "columns": 0.0, "pairs": 0.0}

    def note(module: torch.nn.Module, given: tuple[Any, ...], words: dict[str, Any]) -> None:
        queries, cache = given[0].shape[1], words.get("past_key_values")
        keys = queries if cache is None or not cache.layers else cache.layers[0].get_mask_sizes(queries)[0]
        count["forwards"] += 1
        count["columns"] += queries
        count["pairs"] += queries * keys

    base: Any = model.module.base_model
    hook = base.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield count
    finally:
        hook.remove()


def cost(run: Path, batch: int, repeats: int) -> dict[str, dict[str, dict[str, float]]]:
    """model → label → seconds per answer, columns per answer, keys that a query of a later forward sees."""
    study = Study.load(run / "study.yaml")
    facts = {model["name"]: model for model in json.loads((run / "run.json").read_text())["models"]}
    torch.set_num_threads(1)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in study.models:
        model, task = load(name), study.tasks[0]
        prompts = [one.prompt for one in problems(task.name, n=batch, split=study.split, seed=study.seed)]
        ids, mask = pad([model.encode(prompt) for prompt in prompts], model)
        settings = next(iter(facts[model.name]["settings"].values()))
        ways = {condition.label: Decode.from_dict({**settings, **condition.decode}) for condition in study.conditions}
        seconds: dict[str, list[float]] = {label: [] for label in ways}
        counts: dict[str, dict[str, float]] = {}
        for turn in range(repeats + 1):
            for label, way in ways.items():
                with counted(model) as count:
                    started = time.process_time()
                    decode(model, ids, way, attention_mask=mask, history=False)
                    taken = time.process_time() - started
                counts[label] = count
                if turn:  # the first is for warming up
                    seconds[label].append(taken / batch)
        found[model.name] = {
            label: {
                "seconds": statistics.median(seconds[label]), "columns": counts[label]["columns"],
                "keys": counts[label]["pairs"] / counts[label]["columns"],
            }
            for label in ways
        }  # fmt: skip
        print(name, json.dumps(found[model.name]["none"]), flush=True)
    return found


def label_of(by: str, keep: float) -> str:
    seldom = {"once": " blocks=all", "elastic": " blocks=all drift=0.2"}.get(by, "")
    return "none" if by == "none" else f"sparse cache by {'received' if seldom else by} keep={keep:g}{seldom}"


# ---- the page ----


def draw(points: Points, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        1, len(points), figsize=(3.9 * len(points), 4.0), sharey=True, layout="constrained", squeeze=False
    )
    for panel, (model, found) in zip(panels[0], points.items(), strict=True):
        base = found["none", 1.0]
        low, high = base.interval
        panel.axhspan(100 * low, 100 * high, color="#000000", alpha=0.08, linewidth=0)
        panel.axhline(100 * base.accuracy, color="#000000", linewidth=1, linestyle="--", label="no cache")
        for place, (by, (label, colour, marker)) in enumerate(WAYS.items()):
            drawn = [(share, one) for share in SHARES if (one := point(found, by, share)) is not None]
            x = [share * 1.02 ** (place - 2) for share, _ in drawn]
            y = [100 * one.accuracy for _, one in drawn]
            bars = [
                [100 * abs(end - one.accuracy) for _, one in drawn for end in [one.interval[side]]] for side in (0, 1)
            ]
            panel.errorbar(
                x, y, bars, color=colour, marker=marker, markersize=5, linewidth=1.4, elinewidth=0.8, label=label
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks([1, 0.5, 0.25, 0.125, 0.0625], ["1", "1/2", "1/4", "1/8", "1/16"])
        panel.minorticks_off()
        panel.set_title(f"{model} (n = {len(base.right)})", fontsize=10)
        panel.set_xlabel("share of the keys outside the block that is kept")
        panel.grid(axis="y", linewidth=0.4, alpha=0.6)
    panels[0][0].set_ylabel("right answers, %")
    panels[0][0].set_ylim(-2, 102)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=6, loc="outside lower center")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def table(points: Points, costs: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    lines = [
        "| model | kept keys | share | right, % | against no cache | p | columns | keys per query | ms per answer |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model, found in points.items():
        base, cells = found["none", 1.0], [key for key in found if key[0] != "none"]
        p = adjusted({key: paired(base.right, found[key].right).p for key in cells})
        for by, keep in [("none", 1.0), *sorted(cells, key=lambda key: (-key[1], list(WAYS).index(key[0])))]:
            one, took = found[by, keep], costs.get(model, {}).get(label_of(by, keep), {})
            low, high = one.interval
            against = paired(base.right, one.right)
            change = f"{100 * against.difference:+.1f} [{100 * against.difference_low:+.1f}, {100 * against.difference_high:+.1f}]"
            what = "no cache" if by == "none" else WAYS[by][0]
            if keep == 1 and by != "none":
                what = "all, one look per answer" if by == "once" else "all (the dual cache)"
            paid = [f"{took[name]:.0f}" for name in ("columns", "keys")] if took else ["–", "–"]
            paid.append(f"{1000 * took['seconds']:.0f}" if took else "–")
            tested = ["", ""] if by == "none" else [change, f"{p[by, keep]:.2g}"]
            lines.append(
                f"| {model} | {what} | {NAMES[keep]} | {100 * one.accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}] | "
                + " | ".join([*tested, *paid]) + " |"
            )  # fmt: skip
    return lines


def duels(points: Points) -> list[str]:
    """Ways of choosing against each other at the same share, problem by problem; Holm over the shares of a pair."""
    lines = ["| model | compared | " + " | ".join(NAMES[share] for share in SHARES if share < 1) + " |"]
    lines.append("|---|---|" + "---|" * (len(SHARES) - 1))
    for model, found in points.items():
        for one, other in AGAINST:
            shares = [share for share in SHARES if (one, share) in found and (other, share) in found and share < 1]
            compared = {share: paired(found[other, share].right, found[one, share].right) for share in shares}
            p = adjusted({share: compared[share].p for share in shares})
            cells = [
                f"{100 * compared[share].difference:+.1f} (p = {p[share]:.2g})" if share in p else "–"
                for share in SHARES if share < 1
            ]  # fmt: skip
            lines.append(f"| {model} | {WAYS[one][0]} − {WAYS[other][0]} | " + " | ".join(cells) + " |")
    return lines


def machine() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{names[0] if names else platform.processor()}, one thread, torch {torch.__version__}"


def page(points: Points, costs: dict[str, Any], runs: list[Path]) -> str:
    asked = []
    for run in runs:
        study = Study.load(run / "study.yaml")
        tasks = ", ".join(f"{task.problems} of {task.name}" for task in study.tasks)
        file = "cache" if run.name == "cache" else f"lab/results/cache/{run.name}.study.yaml"
        asked.append(f"`sinkscope study {file}` ({', '.join(study.models)}: {tasks})")
    return "\n".join([
        "# A cache that knows the sinks", "",
        f"{'; '.join(asked)}; then `python benchmarks/cache.py {' '.join(f'runs/{run.name}' for run in runs)} --cost "
        f"--batch {costs.get('batch', 10)} --write`. "
        f"Costs on {costs.get('machine', 'no machine')}.", "",
        "The whole canvas is computed at the start of each block of 8, unless a row says otherwise. In between only the block is "
        "computed, against its own keys and a kept share of all others. Each head's share is chosen by what that head did at "
        "the last look. One token per step. "
        "Answers are compared with those without a cache, problem by problem, over the tasks that a model can do "
        "(≥ 10 % right without a cache). Intervals are 95 %, and p is McNemar's with Holm's correction over a model's conditions.",
        "", "![Right answers against the share of keys that is kept](cache/cache.png)", "",
        "What it means: docs/findings/caches.md. Data: `results/cache`.", "",
        "## Ways of choosing, at the same share", "", "Points of accuracy, first less second, with p.", "",
        *duels(points), "", "## Everything", "",
        "Columns: positions that a generation computes, all forwards together. Keys per query: mean over its forwards, those "
        f"over the whole canvas included. Time: processor time, in a batch of {costs.get('batch', 'none')}.", "",
        *table(points, costs.get("costs", {})), "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--cost", action="store_true", help="count and time every cache anew")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write lab/results/cache.md and the folder beside it")
    asked = parser.parse_args()
    folder = OUT / "cache"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "cost.json"
    costs: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    if asked.cost:
        found = {k: v for run in asked.runs for k, v in cost(run, asked.batch, asked.repeats).items()}
        costs = {"machine": machine(), "batch": asked.batch, "costs": {**costs.get("costs", {}), **found}}
        kept.write_text(json.dumps(costs, indent=1) + "\n")
    points = read(asked.runs)
    text = page(points, costs, asked.runs)
    print(text)
    if asked.write:
        (OUT / "cache.md").write_text(text)
        draw(points, folder / "cache.png")
        for run in asked.runs:
            name = "" if run.name == "cache" else f"{run.name}."
            for file in ("results.json", "results.parquet"):
                shutil.copy(run / file, folder / f"{name}{file}")


if __name__ == "__main__":
    main()
