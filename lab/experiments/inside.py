"""The tables of lab/results/inside, from the files beside them.

    python -m lab.experiments.inside --write

The files come from these commands, with O=lab/results/inside and T="tiny-llama tiny-llada tiny-dream tiny-mmada":

    python -m lab.experiments.heads $T -n 32 --out $O/heads
    python -m lab.experiments.why $T -n 16 --out $O/why
    python -m lab.experiments.channels $T -n 32 --out $O/channels
    python -m lab.experiments.clock tiny-llada tiny-dream tiny-mmada -n 40 --out $O/clock
    sinkscope study lab/experiments/channels.yaml -m tiny-llama,tiny-llada,tiny-dream,tiny-mmada --out runs/channels
    for m in $T; do sinkscope study $O/heads/$m.yaml --out runs/heads-$m; done

and of the pair, the same with P="smol-llama smol-dream":

    python -m lab.experiments.heads $P -n 32 --maskings 1 --out $O/heads
    python -m lab.experiments.why $P -n 8 --out $O/why
    python -m lab.experiments.channels $P -n 8 --out $O/channels
    sinkscope study lab/experiments/channels-pair.yaml --out runs/channels-pair
    for m in $P; do sinkscope study $O/heads/$m.yaml --out runs/heads-$m; done

results.json and results.parquet of a study are stored as answers/NAME.json and answers/NAME.parquet. How many problems a
file is of stands in it, and in the tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.experiments.heads import correlations

OUT = Path(__file__).parents[2] / "lab" / "results" / "inside"
ORDER = ("tiny-llama", "tiny-llada", "tiny-dream", "tiny-mmada", "smol-llama", "smol-dream")


def files(part: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((OUT / part).glob("*.json"), key=lambda path: ((*ORDER, path.stem).index(path.stem), path.stem)):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def span(values: Any, digits: int = 2) -> str:
    """A figure and its interval."""
    if values is None or values[0] is None:
        return "–"
    mean, low, high = (f"{value:+.{digits}f}" for value in values)
    return f"{mean} [{low}, {high}]"


def table(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def channels() -> list[str]:
    lines = [
        "## Largest channel by layer",
        "",
        "Size (root mean square) at sinks over size elsewhere, 95 % over problems.",
        "",
    ]
    lines += table("model", "layer", "channel", "largest in, of steps", "at sinks", "elsewhere", "ratio")
    for name, found in files("channels"):
        for row in found["layers"]:
            sizes = " | ".join("–" if row[what] is None else f"{row[what]:.2f}" for what in ("at sinks", "elsewhere"))
            ratio = "–" if row["ratio"] is None else "{:.2f} [{:.2f}, {:.2f}]".format(*row["ratio"])
            lines.append(
                f"| {name} | {row['layer']} | {row['channel']} | {row['largest in']:.0%} | {sizes} | {ratio} |"
            )
    lines += [
        "",
        "## One taken away, the other measured",
        "",
        "Change against untouched, paired over problems [95 %].",
        "",
    ]
    lines += table(
        "model", "n", "condition", "share of the top key", "heads with > 0.3", "size of the channel", "right"
    )
    for name, found in files("channels"):
        for condition, values in found["conditions"].items():
            first = condition == "none"
            cells = [
                f"{one['mean']:.3f}" if first else span((one["change"], *one["interval"]), 3) for one in values.values()
            ]
            lines.append(f"| {name} | {found['problems']} | {condition} | {' | '.join(cells)} |")
    return lines


def heads() -> list[str]:
    lines = ["## Heads: loss of likelihood without it against its sink share", ""]
    lines += table(
        "model", "heads", "problems", "rank correlation", "within layers", "of the size of the change", "within layers",
        "loss, top quarter by sink", "the others",
    )  # fmt: skip
    for name, found in files("heads"):
        order = sorted(found["heads"], key=lambda row: -row["sink"])
        cut = len(order) // 4
        losses = (f"{sum(row['loss'] for row in part) / len(part):+.4f}" for part in (order[:cut], order[cut:]))
        sizes = correlations([{**row, "loss": abs(row["loss"])} for row in found["heads"]])
        both = (
            span((one[what], *one[f"{what} interval".removeprefix("correlation ")]))
            for one in (found, sizes)
            for what in ("correlation", "within layers")
        )
        lines.append(f"| {name} | {len(order)} | {found['problems']} | {' | '.join(both)} | {' | '.join(losses)} |")
    return lines


def why() -> list[str]:
    parts = ("lead", "by angle", "by norm", "content", "rotary", "value norm ratio", "embedding", "attention", "mlp")
    lines = [
        "## Why keys are sinks, by layer",
        "",
        "Nats before the softmax, against matched keys [95 % over problems].",
        "",
    ]
    lines += table("model", "n", "layer", "sinks", *parts)
    for name, found in files("why"):
        for row in found["layers"]:
            several = row["problems"] > 1  # one problem has no interval
            cells = (span(row.get(part)) if several else f"{row[part][0]:+.2f}" for part in parts)
            lines.append(f"| {name} | {row['problems']} | {row['layer']} | {row['sinks']} | {' | '.join(cells)} |")
    return lines


def clock() -> list[str]:
    lines = [
        "## The step, read off one masked position",
        "",
        "Cross-validated r² of the share of steps that are over.",
        "",
    ]
    lines += table("model", "problems", "layer", "r² [95 %]", "shuffled (97.5 %)", "position alone")
    for name, found in files("clock"):
        for row in found["layers"]:
            read = f"{row['r2']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
            lines.append(
                f"| {name} | {found['problems']} | {row['layer']} | {read} | {row['shuffled']:.2f} | {found['place alone']:.2f} |"
            )
    return lines


def answers() -> list[str]:
    lines = ["## Answers", "", "Right answers, and the change against untouched in points [95 %], over all tasks.", ""]
    lines += table("study", "model", "condition", "n", "right", "change")
    for name, found in files("answers"):
        for cell in found["pooled"] or found["cells"]:
            change = span([100 * cell[what] for what in ("difference", "difference_low", "difference_high")], 1)
            change = "–" if cell["label"] == "none" else change
            lines.append(
                f"| {name} | {cell['model']} | {cell['label']} | {cell['n']} | {cell['accuracy']:.1%} | {change} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into lab/results/inside/details.md")
    sections = [part() for part in (channels, heads, why, clock, answers) if (OUT / part.__name__).is_dir()]
    head = [
        "# Inside the denoising loop: all figures",
        "",
        "Made by `python -m lab.experiments.inside --write` from the files beside this page; its docstring has the commands.",
    ]
    text = "\n".join(["\n".join(part) + "\n" for part in (head, *sections)])
    print(text)
    if parser.parse_args().write:
        (OUT / "details.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
