"""The study `keep` as a figure and a table: accuracy against memory, a line per policy, sinks kept, dropped, or as it is.

    sinkscope study keep -o runs/keep --no-report
    python benchmarks/keep.py runs/keep --out lab/results/keep

Memory is the most that keys and values took between two forwards, per row of a batch, as a share of the dual cache's, which
keeps all of them. Intervals are Wilson's, of the problems of one task and model.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

COLOURS = {
    "h2o": "#0072B2", "streaming": "#009E73", "sparse_dllm": "#D55E00", "focus": "#CC79A7", "random": "#999999",
    "dual": "#000000", "prefix": "#000000", "dllm_cache": "#56B4E9", "dkv_cache": "#E69F00", "d2cache": "#F0E442",
}  # fmt: skip
STYLES = {"as it is": "-", "sinks kept": "--", "sinks dropped": ":"}
Key = tuple[str, str, str]  # model, task, condition


def held(run: Path) -> dict[Key, float]:
    """Bytes of keys and values per row of a batch."""
    found: dict[Key, list[float]] = defaultdict(list)
    for path in sorted((run / "units").glob("answers__*.json")):
        stored = json.loads(path.read_text())
        unit, result = stored["unit"], stored["result"]
        if "cache" in result:
            key = (unit["model"], unit["task"], write(unit["condition"]))
            found[key].append(result["cache"]["kept_bytes"] / len(result["rows"]))
    return {key: sum(values) / len(values) for key, values in found.items()}


def read(run: Path) -> list[dict[str, Any]]:
    """One row per model, task and condition that has a cache, with its accuracy and the share of memory."""
    cells = json.loads((run / "results.json").read_text())["cells"]
    memory, rows = held(run), []
    for cell in cells:
        condition = cell["condition"]
        if condition["name"] != "cache":
            continue
        key = (cell["model"], cell["task"], write(condition))
        whole = (cell["model"], cell["task"], write({"kind": "dual"}))
        sinks = {None: "as it is", "keep": "sinks kept", "drop": "sinks dropped"}[condition.get("sinks")]
        rule = condition.get("rule", {}).get("rule", "")
        rows.append(
            {"model": cell["model"], "task": cell["task"], "policy": condition["kind"], "keep": condition.get("keep", 1.0),
             "sinks": sinks, "rule": rule, "seed": condition.get("seed", 0), "accuracy": cell["accuracy"], "low": cell["low"],
             "high": cell["high"], "n": cell["n"], "memory": memory[key] / memory[whole]}
        )  # fmt: skip
    return rows


def write(condition: dict[str, Any]) -> str:
    """What a condition says of its policy; results name fields of other conditions too."""
    return json.dumps({name: condition.get(name) for name in ("kind", "keep", "sinks", "rule", "seed")}, sort_keys=True)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    places = sorted({(row["model"], row["task"]) for row in rows})
    figure, panels = plt.subplots(1, len(places), figsize=(4.2 * len(places), 4.0), squeeze=False)
    for panel, (model, task) in zip(panels[0], places, strict=True):
        lines = defaultdict(list)
        for row in rows:
            if (row["model"], row["task"]) == (model, task):
                lines[row["policy"], row["sinks"], row["rule"], row["seed"]].append(row)
        for (policy, sinks, _, _), points in lines.items():
            points.sort(key=lambda row: row["memory"])
            x, y = ([row[name] for row in points] for name in ("memory", "accuracy"))
            error = [
                [row["accuracy"] - row["low"] for row in points],
                [row["high"] - row["accuracy"] for row in points],
            ]
            style = "" if len(points) == 1 else STYLES[sinks]
            label = policy if sinks == "as it is" else None
            panel.errorbar(x, y, error, color=COLOURS.get(policy), linestyle=style, marker="o", ms=3, lw=1, label=label)
        panel.set(
            title=f"{model}, {task}", xlabel="keys and values, share of the dual cache", ylabel="accuracy", xscale="log"
        )
        panel.set_ylim(-0.02, 1.02)
    handles, labels = panels[0][0].get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known.keys(), loc="lower center", ncols=6, frameon=False, fontsize=8)
    figure.suptitle("solid: as it is · dashed: sinks kept · dotted: sinks dropped", fontsize=9)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path)
    plt.close(figure)


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| model | task | policy | keep | sinks | by | memory | accuracy | 95 % | n |", "|" + "---|" * 10]
    for row in rows:
        lines.append(
            f"| {row['model']} | {row['task']} | {row['policy']} | {row['keep']:g} | {row['sinks']} | {row['rule']} "
            f"| {row['memory']:.2f} | {100 * row['accuracy']:.0f} % | {100 * row['low']:.0f}–{100 * row['high']:.0f} | {row['n']} |"
        )
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, help="folder for keep.svg and keep.md; without it the table is printed")
    asked = parser.parse_args()
    found = read(asked.run)
    if asked.out is None:
        print("\n".join(table(found)))
    else:
        asked.out.mkdir(parents=True, exist_ok=True)
        draw(found, asked.out / "keep.svg")
        (asked.out / "keep.md").write_text("\n".join(["# Keep or drop", "", "![](keep.svg)", "", *table(found), ""]))
