"""Confidence sequences that hold at every look, and comparisons that stop by them."""

import numpy as np
import pytest

from sinkscope.statistics import confidence_sequence, decided, log_capital


def slow_capital(values, mean, level=0.95):
    """One bet after the other, as the paper writes it down."""
    up = down = 0.0
    seen, squares, found = 0.5, 0.25, []
    for t, value in enumerate(values, 1):
        x = (value + 1) / 2
        stake = min(np.sqrt(2 * np.log(2 / (1 - level)) / (squares / t * t * np.log(t + 1))), 0.75)
        gain = stake * (x - (mean + 1) / 2)
        up, down = up + np.log1p(gain), down + np.log1p(-gain)
        seen += x
        squares += (x - seen / (t + 1)) ** 2
        found.append((up, down))
    return np.array(found).T


def test_capital_is_that_of_one_bet_after_the_other():
    values = np.random.default_rng(0).integers(-1, 2, 60).astype(float)
    for mean in (-0.3, 0.0, 0.05):
        assert np.allclose(log_capital(values, mean), slow_capital(values, mean))
    both = np.stack([values, -values])
    assert np.allclose(log_capital(both, 0.0)[0][1], log_capital(-values, 0.0)[0])


def test_the_interval_is_what_is_not_rejected():
    values = np.random.default_rng(1).choice([-1.0, 0.0, 1.0], 400, p=[0.2, 0.75, 0.05])
    low, high = confidence_sequence(values.tolist())
    assert -0.3 < low < values.mean() < high < 0.0
    inside, outside = decided(values, -low + 1e-6)
    assert not outside[-1] and inside[-1]
    assert not decided(values, -low - 1e-6)[0][-1]
    assert confidence_sequence([]) == (-1.0, 1.0)
    assert confidence_sequence([0.0]) == (-1.0, 1.0)
    assert all(np.diff(one.astype(int)).min() >= 0 for one in decided(values, 0.05)), "a decision was taken back"


@pytest.mark.parametrize("margin", [0.01, 0.03, 0.05])
def test_at_most_one_run_in_twenty_decides_at_the_margin_itself(margin):
    drawn = np.random.default_rng(2).random((400, 600))
    values = (drawn < (0.1 + margin) / 2).astype(float) - (drawn > 1 - (0.1 - margin) / 2)
    inside, outside = decided(values, margin)
    assert (inside | outside).any(1).mean() <= 0.05
