"""Where the sinks of runs stand, whether they move, and how many there are by each rule; from the units of finished runs.

    python -m lab.experiments.block_sinks runs/whole [RUN …] > lab/results/block_causal/places.md

Every figure is a mean over generations; intervals are 95 %, with whole generations drawn again 2000 times.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sinkscope.sinks import HeadShare, Threshold
from sinkscope.statistics import bootstrap
from sinkscope.tracing import Trace
from sinkscope.tracing.sinks import find

Generation = dict[str, Any]
PLACES = {
    "at position 0": lambda g: _share(g, "first"),
    "at positions 0–3": lambda g: _share(g, "start"),
    "in the prompt": lambda g: _share(g, "prompt"),
    "in the active block": lambda g: _share(g, "block"),
    "on masks": lambda g: _share(g, "masked"),
    "canvas that is prompt": lambda g: g["prompt"] / g["positions"],
}
CLASSES = ("static", "moving", "flash", "split", "none")
RULES = ("3 × the uniform share", "0.3 per query that sees it", "column sum 3 above the others' mean")


def main() -> None:
    rows = [(name, found) for folder in sys.argv[1:] for name, found in generations(Path(folder)).items()]
    if not rows:
        sys.exit("expected run folders with traced units, such as runs/block_causal")
    print("# Where the sinks of block-causal and other tiny models stand\n")
    print("`python -m lab.experiments.block_sinks runs/block_causal runs/whole`; mean over generations [95 %], in %.\n")
    table(rows, {"generations": len, "steps": steps}, PLACES)
    print("\nClasses of heads (an autoregressive model by its columns so far), in % of heads:\n")
    table(rows, {}, {name: _class(name) for name in CLASSES})
    print("\nKeys that a rule calls a sink, in % of the keys that are there:\n")
    table(rows, {}, {name: _rule(number) for number, name in enumerate(RULES)})
    by_rule([Path(folder) for folder in sys.argv[1:]])


def by_rule(folders: list[Path]) -> None:
    """The same traces under rules that add up columns, and under one that divides by the queries that see a key."""
    rules = {"column sums": Threshold(3, unit="sum"), "0.3 per query": HeadShare(0.3), "0.2 per query": HeadShare(0.2)}
    whole = [path for folder in folders for path in sorted((folder / "traces").glob("*__none__*.safetensors"))]
    traces = [trace for trace in map(Trace.load, whole) if trace.settings.block_causal and trace.settings.cache is None]
    if not traces:
        return
    print(
        f"\nSinks of {len(traces)} generations without a cache, by rule: number per step and head, then where, in %:\n"
    )
    print("| rule | per step and head | at position 0 | at positions 0–3 | in the prompt | in the active block |")
    print("|---|---|---|---|---|---|")
    for name, rule in rules.items():
        found: list[list[float]] = []
        for trace in traces:
            sinks = find(trace, rule)
            step, at = sinks["step"].to_numpy(), sinks["position"].to_numpy()
            blocks = trace.blocks.numpy()[step]
            inside = (at >= blocks[:, 0]) & (at < blocks[:, 1])
            many = max(len(at), 1)
            places = [(at == 0).sum(), (at < 4).sum(), (at < trace.prompt_length).sum(), inside.sum()]
            cells = trace.steps * trace.layers * trace.heads_count
            found.append([len(at) / cells, *(100 * int(one) / many for one in places)])
        print(f"| {name} | {' | '.join(_interval([row[n] for row in found], 2 - bool(n)) for n in range(5))} |")


def _interval(values: list[float], digits: int = 1) -> str:
    low, high = bootstrap(values)
    return f"{sum(values) / len(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def generations(folder: Path) -> dict[str, list[Generation]]:
    """Of every model, with nothing masked."""
    found: dict[str, list[Generation]] = {}
    name = json.loads((folder / "run.json").read_text())["study"]
    for path in sorted((folder / "units").glob("trace__*__none__*.json")):
        unit = json.loads(path.read_text())
        shown = unit["unit"]["shown"] + (" without its cache" if name == "whole" else "")
        found.setdefault(shown, []).extend(unit["result"]["generations"])
    return found


def steps(found: list[Generation]) -> str:
    counts = [one["steps"] for one in found]
    return f"{min(counts)}–{max(counts)}"


def _share(one: Generation, name: str) -> float:
    return float(one["places"][name] / max(one["places"]["sinks"], 1.0))


def _class(name: str) -> Callable[[Generation], float]:
    def share(one: Generation) -> float:
        heads = one.get("columns") or one["heads"]
        return float(sum(head["class"] == name for head in heads) / len(heads))

    return share


def _rule(number: int) -> Callable[[Generation], float]:
    return lambda one: float(one["rules"][number]) / one["keys"]


def table(
    rows: list[tuple[str, list[Generation]]],
    plain: dict[str, Callable[[list[Generation]], object]],
    shares: dict[str, Callable[[Generation], float]],
) -> None:
    print(f"| model | {' | '.join([*plain, *shares])} |")
    print("|---" * (1 + len(plain) + len(shares)) + "|")
    for name, found in rows:
        cells = [str(made(found)) for made in plain.values()]
        for made in shares.values():
            values = [100 * made(one) for one in found]
            cells.append(_interval(values))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
