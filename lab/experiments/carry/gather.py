"""Readings of many problems of one model: means at sinks and at matched positions, with intervals over whole problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.experiments.carry.pairs import STATES, Pair
from lab.experiments.carry.reading import MEASURES, Array, Reading

QUARTERS = 4  # of the steps of a generation
ALIKE = "masked alike"  # masked pairs that end as words and are committed at about the same step
SUBSETS = (*STATES, ALIKE)
DRAWS = 2000
Key = tuple[str, int]  # subset, quarter of the steps (−1: all)


@dataclass
class Gathered:
    """Per subset and quarter one row per problem: means over its pairs, [measure, (sink, other), layer], and their number."""

    rows: dict[Key, list[tuple[int, int, Array]]] = field(default_factory=dict)

    def add(self, problem: int, reading: Reading, steps: int) -> None:
        values = np.stack([reading.values[name] for name in MEASURES], 1)  # [pair, measure, 2, layer]
        values = np.where(np.isfinite(values).all(2, keepdims=True), values, np.nan)  # of both of a pair, or of none
        for key, chosen in _subsets(reading.pairs, steps):
            if chosen:
                self.rows.setdefault(key, []).append((problem, len(chosen), _mean(values[chosen])))

    def table(self, seed: int = 0, draws: int = DRAWS) -> list[dict[str, Any]]:
        """A row per subset, quarter, measure and layer: both means, and their difference with a 95 % interval."""
        made = []
        for (subset, quarter), rows in sorted(self.rows.items()):
            means = np.stack([mean for _, _, mean in rows])  # [problem, measure, 2, layer]
            pairs = sum(count for _, count, _ in rows)
            for place, measure in enumerate(MEASURES):
                for layer in range(means.shape[-1]):
                    both = means[:, place, :, layer]
                    both = both[np.isfinite(both).all(1)]
                    if len(both):
                        low, high = clustered(both[:, 0] - both[:, 1], seed, draws)
                        made.append({
                            "subset": subset, "quarter": quarter, "measure": measure, "layer": layer,
                            "sinks": float(both[:, 0].mean()), "others": float(both[:, 1].mean()),
                            "difference": float((both[:, 0] - both[:, 1]).mean()), "low": low, "high": high,
                            "problems": len(both), "pairs": pairs,
                        })  # fmt: skip
        return made

    def per_problem(self) -> list[dict[str, Any]]:
        """The means of every problem over all its steps, from which the intervals can be made again."""
        return [
            {"problem": problem, "pairs": count, "subset": subset, "measure": measure, "layer": layer,
             "sinks": float(mean[place, 0, layer]), "others": float(mean[place, 1, layer])}
            for (subset, quarter), rows in sorted(self.rows.items()) if quarter < 0
            for problem, count, mean in rows
            for place, measure in enumerate(MEASURES)
            for layer in range(mean.shape[-1])
            if np.isfinite(mean[place, :, layer]).all()
        ]  # fmt: skip


def clustered(differences: Array, seed: int, draws: int = DRAWS) -> tuple[float, float]:
    """95 % of the means when whole problems are drawn with replacement."""
    drawn = np.random.default_rng(seed).integers(0, len(differences), (draws, len(differences)))
    low, high = np.quantile(differences[drawn].mean(1), [0.025, 0.975])
    return float(low), float(high)


def _subsets(pairs: list[Pair], steps: int) -> Iterator[tuple[Key, list[int]]]:
    for subset in SUBSETS:
        inside = [
            place for place, pair in enumerate(pairs)
            if (pair.state == "masked" and pair.alike if subset == ALIKE else pair.state == subset)
        ]  # fmt: skip
        yield (subset, -1), inside
        for quarter in range(QUARTERS):
            yield (subset, quarter), [place for place in inside if pairs[place].step * QUARTERS // steps == quarter]


def _mean(values: Array) -> Array:
    """Mean over the first axis of what is there; NaN where nothing is."""
    there = np.isfinite(values)
    count = there.sum(0)
    total = np.where(there, values, 0.0).sum(0)
    found: Array = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return found
