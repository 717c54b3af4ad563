"""Statistics of paired right-or-wrong answers: intervals, exact tests, bootstrap; every random draw has a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


def wilson(correct: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a share; (0, 1) where nothing was asked."""
    from scipy.stats import binomtest

    if n == 0:
        return 0.0, 1.0
    found = binomtest(correct, n).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)


def mcnemar(lost: int, won: int) -> float:
    """Exact two-sided p of McNemar's test: of the answers that changed, was it as often for the worse as for the better?"""
    from scipy.stats import binomtest

    return float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def bootstrap(
    differences: Sequence[float], draws: int = 2000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the mean of paired differences: whole pairs are drawn, with replacement."""
    values = np.asarray(differences, dtype=np.float64)
    if len(values) == 0:
        return 0.0, 0.0
    means = resampled_means(values, draws, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def resampled_means(values: Values, draws: int, seed: int) -> Values:
    """Means of `draws` samples with replacement. What matters is how often each *distinct* value is drawn."""
    distinct, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), draws)
    means: Values = drawn @ distinct / len(values)
    return means


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction: adjusted p values in the order given; never smaller than the p itself, never above 1."""
    order = np.argsort(np.asarray(p, dtype=np.float64), kind="stable")
    adjusted = [1.0] * len(p)
    highest = 0.0
    for place, index in enumerate(order.tolist()):
        highest = max(highest, min(1.0, (len(p) - place) * float(p[index])))
        adjusted[index] = highest
    return adjusted


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; 1 where nothing differs."""
    from scipy.stats import wilcoxon

    values = np.asarray(differences, dtype=np.float64)
    return float(wilcoxon(values).pvalue) if np.any(values != 0) else 1.0


@dataclass(frozen=True)
class Paired:
    """Two conditions on the same problems: difference = after − before, in shares."""

    difference: float
    difference_low: float
    difference_high: float
    p: float
    lost: int
    won: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def paired(before: Sequence[bool], after: Sequence[bool], draws: int = 2000, seed: int = 0) -> Paired:
    """Compare answers problem by problem; both sequences are in the same order of problems."""
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    won = sum(b and not a for a, b in zip(before, after, strict=True))
    changes = [float(b) - float(a) for a, b in zip(before, after, strict=True)]
    low, high = bootstrap(changes, draws, seed)
    return Paired((won - lost) / max(len(changes), 1), low, high, mcnemar(lost, won), lost, won)
