"""Are there sinks in the tiny models, and do they move? `python -m lab.experiments.sinks_table MODEL…`.

Traces a few test problems of every kind and sums up what the project's own rules find in them.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.errors import SinkscopeError

if TYPE_CHECKING:
    from sinkscope.tracing.trace import Trace

EPSILON = 3.0


@dataclass(frozen=True)
class Sinks:
    """What was found in one model's traces; shares are of (trace, layer, head, step) or of (trace, layer, head)."""

    model: str
    unit: str
    traces: int
    present: float  # share of (layer, head, step) with a sink
    strongest: float  # in the unit
    strongest_token: str
    classes: dict[str, float]  # share of heads that are static, moving, flash, split, none
    at_begin: float  # share of all sinks that stand at position 0
    tokens: list[tuple[str, float]]  # the tokens that are sinks most often, with their share


def sinks_of(name: str | Path, per_kind: int = 3, seed: int = 5) -> list[Sinks]:
    """Trace `per_kind` test problems of each kind with the model's own decode settings.

    A causal model is also counted in multiples of the uniform share. After the first step it has one query, whose column
    sums are at most 1, so that a threshold on sums finds nothing there.
    """
    from lab import pictures  # noqa: F401 - a kind of problem of its own
    from sinkscope.models.load import load
    from sinkscope.tasks import KINDS, problems
    from sinkscope.tracing import trace

    model = load(str(name))
    kinds = [*KINDS, *(["pictures"] if model.family.name == "mmada" else [])]
    asked = [p.prompt for kind in kinds for p in problems(kind, n=per_kind, split="test", seed=seed)]
    traces = [trace(model, prompt) for prompt in asked]
    return [count_sinks(str(name), traces, unit) for unit in (("sum", "uniform") if model.causal else ("sum",))]


def count_sinks(name: str, traces: Sequence[Trace], unit: str) -> Sinks:
    """Count sinks, tokens and kinds of heads in traces, by the paper's epsilon in one unit."""
    from sinkscope.sinks.rules import Threshold
    from sinkscope.tracing.heads import head_dynamics
    from sinkscope.tracing.sinks import find

    rule = Threshold(EPSILON, unit=unit)
    classes: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    present = pairs = at_begin = 0
    strongest, token = 0.0, ""
    for left in traces:
        found = find(left, rule)
        pairs += left.scores()[..., 0].numel()  # [step, layer, head, key]
        present += found.select("step", "layer", "head").n_unique() if len(found) else 0
        classes.update(head_dynamics(left, rule)["class"].to_list())
        if len(found):
            tokens.update(found["token"].to_list())
            at_begin += int((found["position"] == 0).sum())
            top = found.sort("score", descending=True).row(0, named=True)
            if top["score"] > strongest:
                strongest, token = float(top["score"]), str(top["token"])
    heads, sinks = sum(classes.values()), max(1, sum(tokens.values()))
    return Sinks(
        name,
        unit,
        len(traces),
        present / pairs,
        strongest,
        token,
        {kind: classes[kind] / heads for kind in ("static", "moving", "flash", "split", "none")},
        at_begin / sinks,
        [(text, count / sinks) for text, count in tokens.most_common(5)],
    )


def markdown(rows: Sequence[Sinks]) -> str:
    """One table a question: how many and how strong, how they behave, and on which tokens."""
    lines = [
        "| model | unit | traces | (layer, head, step) with a sink | strongest | on | sinks at position 0 | "
        "static | moving | flash | split | none |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shares = " | ".join(f"{100 * row.classes[k]:.0f} %" for k in ("static", "moving", "flash", "split", "none"))
        lines.append(
            f"| {Path(row.model).name} | {row.unit} | {row.traces} | {100 * row.present:.1f} % | {row.strongest:.1f} | "
            f"{_shown(row.strongest_token)} | {100 * row.at_begin:.1f} % | {shares} |"
        )
    lines += ["", "| model | unit | tokens that are sinks most often, with their share of all sinks |", "|---|---|---|"]
    for row in rows:
        told = ", ".join(f"{_shown(t)} {s:.3f}" for t, s in row.tokens)
        lines.append(f"| {Path(row.model).name} | {row.unit} | {told} |")
    return "\n".join(lines) + "\n"


def _shown(token: str) -> str:
    text = token.replace("\n", "\\n").replace("|", "\\|")
    return f"`{text}`" if text.strip() else f"`{text}` (space)"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: print the tables, and write them to a file with --out."""
    parser = argparse.ArgumentParser(prog="python -m lab.experiments.sinks_table", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="zoo name or checkpoint folder")
    parser.add_argument("--per-kind", type=int, default=3, help="problems of each kind to trace")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    try:
        text = markdown([row for model in given.models for row in sinks_of(model, given.per_kind, given.seed)])
    except SinkscopeError as error:
        print(error, file=sys.stderr)
        return 1
    print(text)
    if given.out is not None:
        models = " ".join(Path(m).name for m in given.models)
        head = (
            "# Sinks in the tiny models\n\n"
            f"Made by `python -m lab.experiments.sinks_table {models} --per-kind {given.per_kind} "
            f"--seed {given.seed} --out lab/results/training/sinks.md`.\n"
            f"Rule: Threshold({EPSILON:g}): column sums (uniform = 1), for the causal model also multiples of the uniform share, "
            "because its later steps have one query each. Each model with its own decode settings. "
            "Classes of heads: sinkscope.tracing.heads, by trace.\n\n"
        )
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(head + text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
