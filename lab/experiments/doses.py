"""Dose against cost, by whose attention is taken: `python -m lab.experiments.doses RESULTS…`.

RESULTS: results.json of runs of lab/results/pair/doses.yaml, or of a smaller study with the same conditions.
The dose is the share of all attention that a condition took, as measured in that task; tasks are never pooled. The cost is the
change of right answers against the unmasked run on the same problems, with its interval of 95 %. There is a row of panels per task.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OUT = Path("lab/results/pair/doses.md")
KINDS = {
    "sink": ("strong sinks, weakened", "o-", "#c0392b"),
    "matched": ("random keys of their mass, weakened", "s--", "#2c7fb8"),
    "random": ("random keys, hidden", "^--", "#7fcdbb"),
    "template": ("another template token, hidden", "D", "#8e44ad"),
    "content": ("top content keys", "v:", "#e67e22"),
    "values": ("strong sinks, values zeroed", "x", "#555555"),
}
Cell = Mapping[str, Any]


def kind_of(condition: Mapping[str, Any]) -> str | None:
    """Whose attention a condition takes; None for the unmasked run."""
    if condition["name"] == "attenuate":
        content = condition.get("kinds") == "content"
        return "content" if content else "sink" if condition.get("of") == "sinks" else "matched"
    names = {"mask_sinks": "sink", "mask_random": "random", "mask_instead": "template", "zero_values": "values"}
    return names.get(condition["name"])


def panels(cells: Sequence[Cell]) -> dict[tuple[str, str], dict[str, list[Cell]]]:
    """By model and task, then by kind, each kind in the order of its doses."""
    found: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in cells:
        kind = kind_of(cell["condition"])
        if kind is not None and cell["mass_share"] is not None:
            found.setdefault((cell["model"], cell["task"]), {}).setdefault(kind, []).append(cell)
    for kinds in found.values():
        for same in kinds.values():
            same.sort(key=lambda cell: cell["mass_share"])
    return found


def figure(found: Mapping[tuple[str, str], Mapping[str, Sequence[Cell]]], out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "doses"
    from matplotlib import pyplot as plt

    models, tasks = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    size = 5.2 * len(models), 1.0 + 3.0 * len(tasks)
    drawn, axes = plt.subplots(
        len(tasks), len(models), figsize=size, layout="constrained", squeeze=False, sharex=True, sharey=True
    )
    for (model, task), kinds in found.items():
        axis = axes[tasks.index(task)][models.index(model)]
        for kind, (label, style, colour) in KINDS.items():
            same = kinds.get(kind, ())
            doses = [100 * cell["mass_share"] for cell in same]
            change = [100 * cell["difference"] for cell in same]
            spans = [[100 * (cell["difference"] - cell["difference_low"]) for cell in same],
                     [100 * (cell["difference_high"] - cell["difference"]) for cell in same]]  # fmt: skip
            axis.errorbar(
                doses, change, yerr=spans, fmt=style, color=colour, label=label, markersize=5, capsize=2, lw=1.2
            )
        axis.axhline(0, color="#999999", lw=0.8)
        if task == tasks[-1]:
            axis.set_xlabel("% of all attention taken")
        sizes = sorted({cell["n"] for same in kinds.values() for cell in same})
        axis.set_title(f"{model}, {task} (n = {' or '.join(map(str, sizes))})")
    for row in axes:
        row[0].set_ylabel("change of right answers, points")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=3)
    drawn.savefig(out, metadata={"Date": None})
    plt.close(drawn)


def lines(found: Mapping[tuple[str, str], Mapping[str, Sequence[Cell]]]) -> list[str]:
    """A table of every condition, for the page."""
    table = ["| model | task | whose attention | condition | % taken | right | points [95 %] |", "|" + "---|" * 7]
    for (model, task), kinds in found.items():
        for kind, (label, *_) in KINDS.items():
            for cell in kinds.get(kind, ()):
                low, high = 100 * cell["difference_low"], 100 * cell["difference_high"]
                table.append(
                    f"| {model} | {task} | {label} | {cell['label']} | {100 * cell['mass_share']:.1f} | "
                    f"{cell['correct']} of {cell['n']} | {100 * cell['difference']:+.0f} [{low:+.0f}, {high:+.0f}] |"
                )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="results.json of dose studies")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    cells = [cell for path in given.results for cell in json.loads(path.read_text("utf-8"))["cells"]]
    found = panels(cells)
    picture = given.out.with_suffix(".svg")
    figure(found, picture)
    print(*lines(found), sep="\n")
    page = [
        "# Doses", "",
        f"Made by `python -m lab.experiments.doses {' '.join(map(str, given.results))}`.", "",
        *__doc__.strip().split("\n")[2:], "", f"![Cost by dose]({picture.name})", "", *lines(found), "",
    ]  # fmt: skip
    given.out.write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
