"""Loss and sinks over training, as a figure and a table: `python -m lab.experiments.curves CURVE… --out curves.png`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.checkpoint import read_curve
from sinkscope.errors import SinkscopeError

PANELS = (
    ("loss", "loss"),
    ("sink_share", "share of (layer, head) with a sink"),
    ("strongest", "strongest column sum (uniform = 1)"),
    ("begin_mass", "attention on position 0"),
)


def figure(curves: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """One panel per measure, one line per run."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, panels = plt.subplots(1, len(PANELS), figsize=(4 * len(PANELS), 3.4), layout="constrained")
    for panel, (key, label) in zip(panels, PANELS, strict=True):
        for name, curve in curves.items():
            points = [(line["step"], line[key]) for line in curve if key in line]
            panel.plot([x for x, _ in points], [y for _, y in points], label=name, linewidth=1.3)
        panel.set_xlabel("step")
        panel.set_title(label, fontsize=10)
        if key == "loss":
            panel.set_yscale("log")
    panels[0].legend(fontsize=8)
    drawn.savefig(out, dpi=110)
    plt.close(drawn)


def table(curves: dict[str, list[dict[str, Any]]]) -> str:
    """The last probe of each run, and its accuracy on the few problems that are asked during training."""
    lines = [
        "| run | steps | loss | sinks: share of (layer, head) | strongest | sinks at position 0 | attention on position 0 | "
        "on the extra slot | solved (16 a kind) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, curve in curves.items():
        probe = [line for line in curve if "sink_share" in line][-1]
        loss = [line["loss"] for line in curve if "loss" in line][-1]
        solved: dict[str, float] = next((line["accuracy"] for line in reversed(curve) if "accuracy" in line), {})
        slot = f"{probe['slot_mass']:.3f}" if "slot_mass" in probe else "–"
        lines.append(
            f"| {name} | {probe['step']} | {loss:.3f} | {probe['sink_share']:.3f} | {probe['strongest']:.1f} | "
            f"{probe['sinks_at_begin']:.3f} | {probe['begin_mass']:.3f} | {slot} | "
            + ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in solved.items())
            + " |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: draw the curves, print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.experiments.curves", description=__doc__)
    parser.add_argument("curves", nargs="+", type=Path, metavar="CURVE", help="curve.jsonl, or NAME.jsonl")
    parser.add_argument("--out", type=Path, default=None, help="figure to write, .png or .svg")
    given = parser.parse_args(arguments)
    try:
        curves = {p.parent.name if p.stem == "curve" else p.stem: read_curve(p) for p in given.curves}
        print(table(curves))
        if given.out is not None:
            figure(curves, given.out)
    except SinkscopeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
