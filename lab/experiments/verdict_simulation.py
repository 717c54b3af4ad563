"""How often each verdict comes out where the truth is known: `python -m lab.experiments.verdict_simulation --write`.

Outcomes are drawn in worlds in which a claim is true, in which it is false, and in which the model has no sink. The rules
of `sinkscope.results.claims` judge them as they judge a run. Sizes are those of our committed runs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sinkscope.study.analysis.verdicts import MAJORITY

from sinkscope.results.claims import FATAL, Test, answers_test, share_test
from sinkscope.statistics import bootstrap, change_interval, wilson

RUNS = 2000
CHURN = 0.01  # answers that change for no reason, each way
MARGIN = 0.05
BASE = 0.95  # accuracy with nothing masked
OUT = Path(__file__).parents[2] / "docs/results/verdicts/simulation.md"


@dataclass(frozen=True)
class World:
    """A claim, what is true in it, the size of a run, and the verdict that would be right."""

    claim: str
    truth: str
    n: int
    right: str
    draw: Callable[[np.random.Generator, int], Test]


def masking(loss: float, dose: float, fatal: bool = False) -> Callable[[np.random.Generator, int], Test]:
    """Answers with and without masking: a share `loss` of all problems is lost beyond what changes for no reason."""

    def draw(rng: np.random.Generator, n: int) -> Test:
        lost = int(rng.binomial(n, min(loss + CHURN, BASE)))
        won = int(rng.binomial(n - lost, CHURN))
        low, high = change_interval(lost, won, n)
        limit, above = (-FATAL * BASE, False) if fatal else (-MARGIN, True)
        return answers_test((won - lost) / n, low, high, limit, above, n, dose)

    return draw


def heads(share: float, spread: float = 0.08) -> Callable[[np.random.Generator, int], Test]:
    """Share of heads with a static sink, generation by generation, as a trace gives it; the claim is that most move."""

    def draw(rng: np.random.Generator, n: int) -> Test:
        values = np.clip(rng.normal(share, spread, n), 0.0, 1.0)
        low, high = bootstrap(values.tolist(), seed=int(rng.integers(2**31)))
        return share_test(float(values.mean()), low, high, MAJORITY, False, n)

    return draw


def worlds() -> Iterator[World]:
    for n in (20, 100, 200, 340):
        yield World("masking costs a DLM almost nothing", "true: costs 0 points", n, "supports", masking(0.0, 0.3))
        yield World("masking costs a DLM almost nothing", "true: costs 1 point", n, "supports", masking(0.01, 0.3))
        yield World(
            "masking costs a DLM almost nothing", "false: costs 15 points", n, "contradicts", masking(0.15, 0.3)
        )
        yield World(
            "masking costs a DLM almost nothing", "false: costs 40 points", n, "contradicts", masking(0.40, 0.3)
        )
        yield World(
            "masking costs a DLM almost nothing", "no sink: 0.3 % of the attention", n, "no test", masking(0.0, 0.003)
        )
        yield World("masking is fatal to an ARM", "true: costs 70 points", n, "supports", masking(0.70, 0.45, True))
        yield World("masking is fatal to an ARM", "false: costs 10 points", n, "contradicts", masking(0.10, 0.45, True))
        yield World(
            "masking is fatal to an ARM", "no sink: 0.3 % of the attention", n, "no test", masking(0.4, 0.003, True)
        )
    for n in (3, 6, 20):
        yield World("sinks move", "true: 20 % static", n, "supports", heads(0.2))
        yield World("sinks move", "false: 85 % static", n, "contradicts", heads(0.85))
        yield World("sinks move", "at the limit: 50 % static", n, "undecided", heads(0.5))


def table(runs: int) -> str:
    """Shares of the verdicts in every world, the right one with its interval."""
    lines = [
        "| claim | world | n | right verdict | came out [95 %] | supports | contradicts | undecided | no test |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for number, world in enumerate(worlds()):
        rng = np.random.default_rng([7, number])
        came: Counter[str] = Counter(world.draw(rng, world.n).verdict for _ in range(runs))
        low, high = wilson(came[world.right], runs)
        shares = " | ".join(
            f"{100 * came[one] / runs:.1f}" for one in ("supports", "contradicts", "undecided", "no test")
        )
        lines.append(
            f"| {world.claim} | {world.truth} | {world.n} | {world.right} | **{100 * came[world.right] / runs:.1f} %** "
            f"[{100 * low:.1f}, {100 * high:.1f}] | {shares} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--write", action="store_true", help=f"into {OUT.name}")
    told = parser.parse_args()
    found = table(told.runs)
    print(found)
    if told.write:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(
            "# How often a verdict is right\n\n"
            f"Simulated outcomes, {told.runs} runs per line, judged by the rules of a study; shares in %. Right answers: "
            f"{100 * BASE:.0f} % with nothing masked, {100 * CHURN:.0f} % of the answers change for no reason each way, "
            f"margin {100 * MARGIN:.0f} points.\n"
            "Command: `python -m lab.experiments.verdict_simulation --write`.\n\n" + found,
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
