"""Statistics of paired right-or-wrong answers: intervals, exact tests, bootstrap; every random draw has a seed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)


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
    distinct, counts = np.unique(values, return_counts=True)  # what matters is how often each distinct value is drawn
    low, high = np.quantile(resampled(counts, draws, seed) @ distinct / len(values), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_ratio(part: Values, whole: Values, draws: int = 2000, seed: int = 0) -> tuple[Values, Values]:
    """95 % interval of the sum of the parts over that of the wholes, when whole units are drawn with replacement.

    part: [unit] or [unit, column], whole: [unit]; low and high are numbers or [column]. A sample without a whole counts as 0.
    """
    weight = resampled(np.ones(len(whole)), draws, seed)
    above, below = weight @ part, weight @ whole
    below = below.reshape(below.shape + (1,) * (above.ndim - 1))
    drawn = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return low, high


def resampled(counts: npt.NDArray[Any], draws: int, seed: int) -> npt.NDArray[np.int64]:
    """How often each thing is drawn in each of `draws` samples with replacement, `[draw, thing]`; counts: how many there are."""
    total = int(counts.sum())
    return np.random.default_rng(seed).multinomial(total, counts / total, draws)


def change_interval(lost: float, won: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Tango's score interval of a paired difference, (won − lost) / n: the differences that a score test does not reject.

    Unlike a bootstrap it has a width where no answer changed: n problems cannot rule out a change of about 4 / n.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    if n == 0:
        return -1.0, 1.0
    z, difference = float(norm.ppf((1 + level) / 2)), (won - lost) / n

    def excess(delta: float) -> float:
        """Squared distance from the observed difference less z² times its variance, if delta were true; 0 at the limits."""
        b = -lost - won + (2 * n - won + lost) * delta
        c = -lost * delta * (1 - delta)
        losing = ((max(b * b - 8 * n * c, 0.0)) ** 0.5 - b) / (4 * n)  # most likely share of lost answers under delta
        variance = n * (2 * losing + delta * (1 - delta))
        return float((won - lost - n * delta) ** 2 - z * z * variance)

    near = 1e-12
    low = -1.0 if lost == n else brentq(excess, -1.0, difference - near)
    high = 1.0 if won == n else brentq(excess, difference + near, 1.0)
    return float(low), float(high)


def problems_needed(lost: int, won: int, n: int, margin: float, most: int = 100_000) -> int | None:
    """About how many problems would put the interval on one side of −margin, were the shares to stay as they are.

    None where more than `most` would be needed: the difference is too close to the margin.
    """
    size = max(n, 1)
    while size <= most:
        low, high = change_interval(lost * size / max(n, 1), won * size / max(n, 1), size)
        if low > -margin or high < -margin:
            return size
        size = max(size + 1, round(size * 1.1))
    return None


# ---- comparisons that may be looked at after every problem

BET = 0.75  # the most that is staked of the capital: below 1, so that it cannot be lost


def log_capital(differences: Values, mean: float, level: float = 0.95) -> tuple[Values, Values]:
    """Log-capital [..., n] of betting that the true mean of differences [..., n] in −1 … 1 is above `mean`, and below.

    Waudby-Smith and Ramdas (2023), "Estimating means of bounded random variables by betting": were `mean` the truth,
    neither capital would ever reach 2 / (1 − level) with a probability of more than (1 − level) / 2. Stakes are the
    predictable plug-in ones of the paper, and the same for every mean, so that rejected means form an interval.
    """
    x = (np.asarray(differences, dtype=np.float64) + 1) / 2  # 0 … 1, as in the paper
    count = np.arange(1, x.shape[-1] + 1)
    means = (0.5 + np.cumsum(x, -1)) / (count + 1)
    spread = (0.25 + np.cumsum((x - means) ** 2, -1)) / (count + 1)
    before = np.concatenate([np.full((*x.shape[:-1], 1), 0.25), spread[..., :-1]], -1)  # a stake knows the past alone
    stake = np.minimum(np.sqrt(2 * np.log(2 / (1 - level)) / (before * count * np.log1p(count))), BET)
    gain = stake * (x - (mean + 1) / 2)
    return np.cumsum(np.log1p(gain), -1), np.cumsum(np.log1p(-gain), -1)


def decided(differences: Values, margin: float, level: float = 0.95) -> tuple[Values, Values]:
    """[..., n]: whether the confidence sequence is inside −margin … margin by then, and whether it is outside."""
    enough = np.log(2 / (1 - level))
    above, below = ({}, {})
    for mean in (-margin, margin):
        up, down = log_capital(differences, mean, level)
        above[mean] = np.maximum.accumulate(up, -1) >= enough
        below[mean] = np.maximum.accumulate(down, -1) >= enough
    return above[-margin] & below[margin], below[-margin] | above[margin]


def confidence_sequence(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of paired differences that holds at every number of problems at once, and so when stopped."""
    values = np.asarray(differences, dtype=np.float64)
    if len(values) == 0:
        return -1.0, 1.0
    return _end(values, -1.0, level), _end(values, 1.0, level)


def _end(values: Values, gone: float, level: float) -> float:
    """The mean nearest to the data, from this side, that is rejected; `gone` itself where not even that is."""
    side, kept = (0, 1.0) if gone < 0 else (1, -1.0)

    def rejected(mean: float) -> bool:
        return bool(log_capital(values, mean, level)[side].max() >= np.log(2 / (1 - level)))

    for _ in range(40 if rejected(gone) else 0):
        middle = (kept + gone) / 2
        kept, gone = (kept, middle) if rejected(middle) else (middle, gone)
    return gone


CORRECTION = "Holm"  # the name of what `adjusted` does, in sentences


def adjusted(p: Mapping[Key, float]) -> dict[Key, float]:
    """p values that are tested together, corrected by Holm, each under its key: never below the p itself, never above 1."""
    found, highest = {}, 0.0
    for place, key in enumerate(sorted(p, key=lambda key: p[key])):
        highest = max(highest, min(1.0, (len(p) - place) * float(p[key])))
        found[key] = highest
    return {key: found[key] for key in p}


def interval_p(estimate: float, low: float, high: float, limit: float) -> float:
    """Two-sided p of the limit, if the estimate is normal with the half-width of its 95 % interval on the limit's side."""
    from scipy.stats import norm

    half = estimate - low if limit < estimate else high - estimate
    if half <= 0:
        return float(estimate == limit)
    return float(2 * norm.sf(abs(estimate - limit) / half * norm.ppf(0.975)))


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


def paired(before: Sequence[bool], after: Sequence[bool]) -> Paired:
    """Compare answers problem by problem; both sequences are in the same order of problems."""
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    won = sum(b and not a for a, b in zip(before, after, strict=True))
    low, high = change_interval(lost, won, len(before))
    return Paired((won - lost) / max(len(before), 1), low, high, mcnemar(lost, won), lost, won)
