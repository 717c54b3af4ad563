"""Every statistic against its obvious twin."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.statistics import (
    adjusted,
    bootstrap,
    bootstrap_ratio,
    change_interval,
    mcnemar,
    paired,
    problems_needed,
    resampled,
    signed_rank,
    wilson,
)  # fmt: skip


@given(n=st.integers(1, 300), data=st.data())
def test_wilson_is_where_the_score_test_rejects(n: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, n))
    low, high = wilson(correct, n)
    for limit in (low, high):  # at its limits the observed share is 1.96 standard errors of the limit away
        if 1e-9 < limit < 1 - 1e-9:
            assert abs(correct / n - limit) / math.sqrt(limit * (1 - limit) / n) == pytest.approx(1.959964, abs=1e-4)
    assert 0 <= low <= correct / n <= high <= 1


@given(lost=st.integers(0, 12), won=st.integers(0, 12))
def test_mcnemar_counts_all_ways_in_which_changes_could_have_fallen(lost: int, won: int) -> None:
    n = lost + won
    chances = [math.comb(n, k) / 2**n for k in range(n + 1)]
    twin = min(1.0, sum(p for p in chances if p <= chances[lost] * (1 + 1e-9)))
    assert mcnemar(lost, won) == pytest.approx(twin)


def holm_twin(p: list[float]) -> list[float]:
    """Adjusted p of hypothesis i: the largest (m − rank) · p among those that are not larger."""
    ranked = sorted(range(len(p)), key=lambda i: p[i])
    return [
        min(1.0, max((len(p) - r) * p[j] for r, j in enumerate(ranked[: ranked.index(i) + 1]))) for i in range(len(p))
    ]


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm(p: list[float]) -> None:
    found = list(adjusted(dict(enumerate(p))).values())
    assert found == pytest.approx(holm_twin(p))
    assert all(after >= before for before, after in zip(p, found, strict=True))


def test_bootstrap_draws_the_very_distribution_of_resampled_means() -> None:
    values = [-1.0, 0.0, 0.0, 1.0]
    means = [sum(sample) / 4 for sample in product(values, repeat=4)]  # all 256 samples, equally likely
    distinct, counts = np.unique(values, return_counts=True)
    drawn = resampled(counts, 200_000, seed=1) @ distinct / 4
    for mean in sorted(set(means)):
        expected = means.count(mean) / len(means)
        assert abs(np.isclose(drawn, mean).mean() - expected) < 0.005
    assert bootstrap(values, 200_000) == (min(means) + 0.25, max(means) - 0.25)


def test_a_ratio_is_drawn_by_whole_units_and_column_by_column() -> None:
    part, whole = np.array([[1.0, 0.0], [2.0, 4.0], [0.0, 0.0]]), np.array([2.0, 8.0, 0.0])
    low, high = bootstrap_ratio(part, whole, 500, seed=3)
    picks = np.random.default_rng(3).multinomial(3, np.ones(3) / 3, 500)
    sums = [(one @ part, one @ whole) for one in picks]
    ratios = np.array([a / b if b else np.zeros(2) for a, b in sums])  # the slow twin: a sample at a time
    assert np.allclose([low, high], np.quantile(ratios, [0.025, 0.975], axis=0))
    assert np.allclose(bootstrap_ratio(part[:, 0], whole, 500, seed=3), [low[0], high[0]])


def test_adjusted_p_values_keep_their_keys() -> None:
    assert adjusted({"a": 0.04, "b": 0.01, "c": 0.5}) == dict(zip("abc", holm_twin([0.04, 0.01, 0.5]), strict=True))
    assert adjusted({}) == {}


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=40), st.integers(0, 5))
def test_bootstrap_is_the_same_for_the_same_seed_and_holds_the_mean(values: list[float], seed: int) -> None:
    low, high = bootstrap(values, 500, seed)
    assert (low, high) == bootstrap(values, 500, seed)
    assert min(values) <= low <= high <= max(values)
    if len(set(values)) == 1:
        assert low == high == pytest.approx(values[0])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_paired_counts_problem_by_problem(pairs: list[tuple[bool, bool]]) -> None:
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    found = paired(before, after)
    assert found.difference == pytest.approx(sum(after) / len(after) - sum(before) / len(before))
    assert (found.lost, found.won) == (pairs.count((True, False)), pairs.count((False, True)))
    assert found.difference_low <= found.difference + 1e-9 and found.difference_high >= found.difference - 1e-9
    assert found.p == mcnemar(found.lost, found.won)


def score(lost: int, won: int, n: int, delta: float) -> float:
    """The score statistic at a difference of delta, its variance by searching the likelihood over the share of lost answers."""
    shares = np.linspace(max(0.0, -delta), (1 - delta) / 2, 20_001)[
        1:-1
    ]  # lost; won is delta more; the rest is unchanged
    counts = ((lost, shares), (won, shares + delta), (n - lost - won, 1 - 2 * shares - delta))
    likely = sum(count * np.log(np.maximum(share, 1e-300)) for count, share in counts if count)
    best = float(shares[np.argmax(likely)])
    return float((won - lost - n * delta) / math.sqrt(n * (2 * best + delta - delta**2)))


@given(n=st.integers(5, 400), data=st.data())
def test_the_interval_of_a_change_is_where_the_score_test_rejects(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n))
    won = data.draw(st.integers(0, n - lost))
    low, high = change_interval(lost, won, n)
    assert -1 <= low <= (won - lost) / n <= high <= 1
    for limit, sign in ((low, 1), (high, -1)):
        if -0.99 < limit < 0.99:
            assert sign * score(lost, won, n, limit) == pytest.approx(1.959964, abs=0.02)


def test_the_interval_of_no_change_narrows_with_the_number_of_problems() -> None:
    for n in (1, 10, 73, 340):
        low, high = change_interval(0, 0, n)
        assert (-low, high) == pytest.approx([1.959964**2 / (n + 1.959964**2)] * 2)
    assert change_interval(3, 0, 3)[0] == -1 and change_interval(0, 3, 3)[1] == 1


def test_the_interval_covers_what_is_true_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(60, [0.1, 0.04, 0.86], 3_000)
    held = [low <= -0.06 <= high for lost, won, _ in drawn.tolist() for low, high in [change_interval(lost, won, 60)]]
    assert 0.93 < np.mean(held) < 0.975


@given(n=st.integers(1, 60), data=st.data())
def test_as_many_problems_as_are_needed_decide(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n))
    won = data.draw(st.integers(0, n - lost))
    found = problems_needed(lost, won, n, 0.05, most=20_000)
    if found is None:
        assert abs((won - lost) / n + 0.05) < 0.02
    else:
        low, high = change_interval(lost * found / n, won * found / n, found)
        assert low > -0.05 or high < -0.05
        assert found == n or found >= n


def test_signed_rank_without_differences() -> None:
    assert signed_rank([0.0, 0.0]) == 1.0
    assert signed_rank([-1.0, -2.0, -3.0, -4.0, -5.0]) == pytest.approx(2 / 32)
