"""Sequential stopping by simulation: how often it decides wrongly, and how many problems it takes.

python benchmarks/sequential.py > lab/results/sequential.md
"""

from __future__ import annotations

import sys

import numpy as np

from sinkscope.paper import TABLE_1
from sinkscope.statistics import Values, change_interval, decided

RUNS, PROBLEMS, ROUND = 2000, 1319, 50  # GSM8K's size
MARGINS = (1.0, 3.0, 5.0)
CHANGED = (0.05, 0.10, 0.20)  # shares of problems whose verdict differs between the two conditions


def draws(difference: float, changed: float, seed: int) -> Values:
    """[run, problem] of −1 (lost), 0 and 1 (won) with this mean and this share of changed verdicts."""
    lost, won = (changed - difference) / 2, (changed + difference) / 2
    uniform = np.random.default_rng(seed).random((RUNS, PROBLEMS))
    return (uniform < won).astype(float) - (uniform > 1 - lost)


def stopped(differences: Values, margin: float) -> tuple[Values, Values, Values]:
    """Per run: decided inside, decided outside, and the problems that were asked, in rounds."""
    inside, outside = decided(differences, margin / 100)
    looks = np.array([*range(ROUND, PROBLEMS, ROUND), PROBLEMS]) - 1
    either = (inside | outside)[:, looks]
    first = np.where(either.any(1), either.argmax(1), len(looks) - 1)
    at = looks[first]
    rows = np.arange(RUNS)
    # Where both boundaries were crossed by the same look, the one that was crossed first counts.
    is_inside = inside[rows, at] & ~(outside[rows, at] & (outside.argmax(1) < inside.argmax(1)))
    return is_inside, outside[rows, at] & ~is_inside, at + 1.0


def fixed(differences: Values, margin: float) -> float:
    """Share of runs that the whole benchmark decides, by the interval that `table1` prints."""
    found = 0
    lost, won = (differences < 0).sum(1), (differences > 0).sum(1)
    pairs, counts = np.unique(np.stack([lost, won], 1), axis=0, return_counts=True)
    for (down, up), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        low, high = (100 * end for end in change_interval(down, up, PROBLEMS))
        if (-margin < low and high < margin) or high < -margin or low > margin:
            found += count
    return found / RUNS


def errors() -> list[str]:
    lines = [
        "| margin | true difference | verdicts changed | decided inside | decided outside | wrong |",
        "|---|---|---|---|---|---|",
    ]
    for margin in MARGINS:
        for times, changed in [(one, share) for one in (-2.0, -1.0, -0.5, 0.0, 1.0) for share in CHANGED]:
            true = times * margin
            if abs(true) / 100 > changed:
                continue
            inside, outside, _ = stopped(draws(true / 100, changed, seed=1), margin)
            # On the margin itself neither is true.
            wrong = inside.mean() * (abs(times) >= 1) + outside.mean() * (abs(times) <= 1)
            lines.append(
                f"| {margin:g} | {true:+g} | {100 * changed:g} % | {100 * inside.mean():.1f} % | "
                f"{100 * outside.mean():.1f} % | {100 * wrong:.2f} % |"
            )
    return lines


def savings() -> list[str]:
    lines = [
        "| model, sinks masked | paper's difference | verdicts changed | margin | mean problems | decided | decided by all 1319 |",
        "|---|---|---|---|---|---|---|",
    ]
    for (family, benchmark), figures in TABLE_1.items():
        if benchmark != "gsm8k":
            continue
        for k in (1, 5, 10):
            true = figures[k] - figures[0]
            changed = min(max(0.10, abs(true) + 0.04), 1.0)
            values = draws(true, changed, seed=2)
            for margin in (3.0, 5.0):
                inside, outside, problems = stopped(values, margin)
                lines.append(
                    f"| {family}, {k} | {100 * true:+.0f} | {100 * changed:.0f} % | {margin:g} | {problems.mean():.0f} | "
                    f"{100 * (inside | outside).mean():.0f} % | {100 * fixed(values, margin):.0f} % |"
                )
    return lines


def main() -> None:
    table = errors()
    worst = max(float(line.split("|")[-2].strip(" %")) for line in table[2:])
    text = [
        "# Sequential stopping, by simulation", "",
        f"`python benchmarks/sequential.py`: {RUNS} runs a row, up to {PROBLEMS} problems, looked at every {ROUND}.",
        "Confidence sequence at 95 % by betting (Waudby-Smith and Ramdas 2023), on paired differences of verdicts.", "",
        "## How often it is wrong", "",
        f"At most {worst:.2f} % of the runs, with 5 % allowed. A decision at a true difference on the margin counts as wrong.",
        "", *table, "",
        "## How many problems it takes, at the paper's differences on GSM8K", "",
        "The share of changed verdicts is assumed: 10 %, or the difference plus 4 points where that is more.",
        "A comparison that stays open takes all 1319 problems.", "", *savings(), "",
    ]  # fmt: skip
    sys.stdout.write("\n".join(text))


if __name__ == "__main__":
    main()
