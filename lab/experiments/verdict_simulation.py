"""How often each verdict comes out where the truth is known: `python -m lab.experiments.verdict_simulation --write`.

Rows of a run are sampled in worlds in which a claim is true, in which it is false, and in which the model has no sink. The
rules of `sinkscope.results.claims` judge them as they judge a run. Sizes are those of committed runs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.results.claims import judge_claims
from sinkscope.results.rows import TABLES, Cell, Dynamics, Heads, Interval, LayerHeads, Tables
from sinkscope.statistics import bootstrap, change_interval, mcnemar, wilson

RUNS = 2000
CHURN = 0.01  # answers that change for no reason, each way
MARGIN = 0.05
BASE = 0.95  # accuracy with nothing masked
OUT = Path(__file__).parents[2] / "lab/results/verdicts/simulation.md"
STRONG = {"above": {"rule": "head_share", "group": "all", "epsilon": 0.3}}
Draw = Callable[[np.random.Generator, int], Tables]


@dataclass(frozen=True)
class World:
    """A claim, what is true in it, the size of a run, and the verdict that would be right."""

    claim: str
    truth: str
    n: int
    right: str
    draw: Draw

    def judge(self, rng: np.random.Generator) -> str:
        """The verdict of one run in this world; "no row" where the run says nothing of the claim."""
        claims = judge_claims(self.draw(rng, self.n), MARGIN)
        return next((row.verdict for row in claims if row.name == self.claim), "no row")


def make_cell(n: int, lost: int, won: int, dose: float, causal: bool, condition: dict[str, Any]) -> Cell:
    """Answers of one condition; `none` where nothing is lost or masked."""
    low, high = change_interval(lost, won, n)
    name = condition.get("name", "none")
    plain = {"name": name, "k": 0 if name == "none" else 1, "rank": None if name == "none" else "clean", **condition}
    correct = round(BASE * n) + won - lost
    return Cell(
        model="m", family="llama" if causal else "llada", causal=causal, task="arithmetic", setting="",
        condition={"rows": None if name == "none" else "all", **plain}, label=name, n=n, correct=correct,
        accuracy=correct / n, low=0.0, high=1.0, difference=(won - lost) / n, difference_low=low, difference_high=high,
        p=mcnemar(lost, won), lost=lost, won=won, p_holm=1.0, key_share=0.01, mass_share=dose, controls={}, leak=0.0,
        confidence=None, paper=None,
    )  # fmt: skip


def make_tables(**rows: list[Any]) -> Tables:
    """Tables of a run; those that are not named are empty."""
    return Tables(**{**{name: [] for name in TABLES}, **rows})


def mask(loss: float, dose: float, causal: bool = False, strong: bool = True) -> Draw:
    """Answers with and without masking: a share `loss` of all problems is lost beyond what changes for no reason."""

    def draw(rng: np.random.Generator, n: int) -> Tables:
        lost = int(rng.binomial(n, min(loss + CHURN, BASE)))
        won = int(rng.binomial(n - lost, CHURN))
        condition = {"name": "mask_sinks", **(STRONG if strong else {})}
        cells = [make_cell(n, 0, 0, 0.0, causal, {}), make_cell(n, lost, won, dose, causal, condition)]
        return make_tables(cells=cells, dynamics=[])

    return draw


def trace(spread: float = 0.08, headers: int = 0, **means: float) -> Draw:
    """Shares of heads (or of tokens) generation by generation, as traces give them."""

    def draw(rng: np.random.Generator, n: int) -> Tables:
        intervals = {}
        for name, mean in {"with_sink": 0.9, **means}.items():
            values = np.clip(rng.normal(mean, spread, n), 0.0, 1.0)
            low, high = bootstrap(values.tolist(), draws=300, seed=int(rng.integers(2**31)))
            intervals[name] = Interval(float(values.mean()), low, high)
        return make_tables(dynamics=[make_dynamics(n, intervals, headers)])

    return draw


def make_dynamics(n: int, intervals: dict[str, Interval], headers: int) -> Dynamics:
    shares: dict[str, Any] = dict.fromkeys(Heads.__dataclass_fields__, 0.0)
    return Dynamics(
        model="m", setting="", condition="none", generations=n, **shares, sinks_found=9, non_sinks=0.9, places={}, rules=[],
        layers=[LayerHeads(layer=0, first_key=0.0, **shares)], rule="threshold", unit="uniform", epsilon=3.0,
        intervals=intervals, headers=headers,
    )  # fmt: skip


def worlds() -> Iterator[World]:
    """Every world at every size."""
    for n in (20, 100, 200, 340):
        for name, strong in (("strong_sink", True), ("one_sink", False)):
            yield World(name, "true: 0 points", n, "supports", mask(0.0, 0.3, strong=strong))
            yield World(name, "true: 1 point", n, "supports", mask(0.01, 0.3, strong=strong))
            yield World(name, "false: 15 points", n, "contradicts", mask(0.15, 0.3, strong=strong))
            yield World(name, "false: 40 points", n, "contradicts", mask(0.40, 0.3, strong=strong))
            yield World(name, "no sink: 0.3 % of the attention", n, "no test", mask(0.0, 0.003, strong=strong))
        yield World("arm_sink", "true: 70 points", n, "supports", mask(0.70, 0.45, True))
        yield World("arm_sink", "false: 10 points", n, "contradicts", mask(0.10, 0.45, True))
        yield World("arm_sink", "no sink: 0.3 % of the attention", n, "no test", mask(0.4, 0.003, True))
    for n in (6, 20, 40):
        few = n < 20
        yield World("sinks_exist", "true: 90 % of heads", n, "no test" if few else "supports", trace())
        yield World(
            "sinks_exist", "no sink: 2 % of heads", n, "no test" if few else "contradicts", trace(0.02, with_sink=0.02)
        )
        yield World("sinks_move", "true: 20 % static", n, "no test" if few else "supports", trace(static=0.2))
        yield World("sinks_move", "false: 85 % static", n, "no test" if few else "contradicts", trace(static=0.85))
        yield World("sinks_move", "at the limit: 50 % static", n, "no test" if few else "undecided", trace(static=0.5))
        yield World("sinks_move", "no sink: 2 % of heads", n, "no test", trace(0.02, with_sink=0.02, static=0.2))
        for headers in (0, 1, 4):
            known = not few and headers != 1
            true, false = ("supports", "contradicts") if known else ("no test", "no test")
            yield World("structural", f"true: 80 against 40 %, headers: {headers}", n, true,
                        trace(headers=headers, structural=0.8, structural_base=0.4))  # fmt: skip
            yield World("structural", f"false: 30 against 60 %, headers: {headers}", n, false,
                        trace(headers=headers, structural=0.3, structural_base=0.6))  # fmt: skip


def write_table(runs: int) -> str:
    """Shares of the verdicts in every world, the right one with its interval."""
    lines = [
        "| claim | world | n | right verdict | came out [95 %] | supports | contradicts | undecided | no test |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for number, world in enumerate(worlds()):
        rng = np.random.default_rng([7, number])
        count: Counter[str] = Counter(world.judge(rng) for _ in range(runs))
        low, high = wilson(count[world.right], runs)
        shares = " | ".join(
            f"{100 * count[one] / runs:.1f}" for one in ("supports", "contradicts", "undecided", "no test")
        )
        lines.append(
            f"| {world.claim} | {world.truth} | {world.n} | {world.right} | **{100 * count[world.right] / runs:.1f} %** "
            f"[{100 * low:.1f}, {100 * high:.1f}] | {shares} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--write", action="store_true", help=f"into {OUT.name}")
    choice = parser.parse_args()
    table = write_table(choice.runs)
    print(table)
    if choice.write:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(
            "# How often a verdict is right\n\n"
            f"Simulated outcomes, {choice.runs} runs per line, judged by the rules of a study; shares in %. Accuracy: "
            f"{100 * BASE:.0f} % with nothing masked; {100 * CHURN:.0f} % of the answers change for no reason each way; the "
            f"margin is {100 * MARGIN:.0f} points.\n"
            "Command: `python -m lab.experiments.verdict_simulation --write`.\n\n" + table,
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
