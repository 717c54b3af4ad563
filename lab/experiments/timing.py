"""The table of a timing study: `python -m lab.experiments.timing lab/results/pair/timing-tiny-arm/results.json`.

A row is a model and what was hidden, and a column is when. A cell has points against nothing hidden with the 95 % interval,
and the share of the generation's attention that the hidden keys would have drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

WINDOWS = {(0.0, 1.0): "all", (0.0, 0.25): "first quarter", (0.25, 0.75): "middle half", (0.75, 1.0): "last quarter"}


def hidden(condition: dict[str, Any]) -> str:
    keys = "strong sinks" if condition.get("above") else "top keys"
    return f"random, mass of {keys}" if condition["name"] == "mask_random" else keys


def shown(cell: dict[str, Any]) -> str:
    ends = [100 * cell[name] for name in ("difference", "difference_low", "difference_high")]
    return f"{ends[0]:+.1f} [{ends[1]:+.1f}, {ends[2]:+.1f}], {100 * cell['mass_share']:.1f} %"


def table(results: dict[str, Any]) -> list[str]:
    cells = [cell for cell in results["cells"] if cell["condition"].get("steps") is not None]
    plain = {cell["model"]: cell for cell in results["cells"] if cell["condition"]["name"] == "none"}
    found = {
        (cell["model"], hidden(cell["condition"]), tuple(cell["condition"]["steps"])): shown(cell) for cell in cells
    }
    windows = [window for window in WINDOWS if any(key[2] == window for key in found)]
    lines = [
        f"| model | hidden | {' | '.join(WINDOWS[window] for window in windows)} |",
        "|---" * (len(windows) + 2) + "|",
    ]
    for model, cell in plain.items():
        lines.append(f"| {model} | nothing: {cell['correct']} of {cell['n']} right |" + " |" * len(windows))
        for name in dict.fromkeys(key[1] for key in found if key[0] == model):
            row = " | ".join(found.get((model, name, window), "–") for window in windows)
            lines.append(f"| {model} | {name} | {row} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json of a run, or a committed copy")
    given = parser.parse_args()
    sys.stdout.write("\n".join(table(json.loads(given.results.read_text(encoding="utf-8")))) + "\n")


if __name__ == "__main__":
    main()
