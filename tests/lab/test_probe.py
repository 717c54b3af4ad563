"""A probe finds what was planted in states, and nothing where labels are shuffled or groups are all there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sinkscope as sk
from lab.experiments.carry.probe import probe

GROUPS = np.repeat(np.arange(20), 12)


def states(seed: int, width: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(GROUPS), width))


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_planted_information_is_recovered(seed: int) -> None:
    x = states(seed)
    found = probe(x, x @ np.arange(24.0), GROUPS, seed=seed)
    assert found.r2 > 0.95
    assert found.shuffled_high < 0.2
    assert found.found


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_noise_holds_nothing(seed: int) -> None:
    labels = np.random.default_rng(seed + 1).normal(size=len(GROUPS))
    assert probe(states(seed), labels, GROUPS, seed=seed).r2 < 0.1


def test_a_yes_or_no_label_has_a_balanced_accuracy() -> None:
    x = states(3)
    found = probe(x, (x[:, 0] > 1).astype(float), GROUPS)
    assert found.accuracy is not None and found.accuracy > 0.8


def test_recognising_the_group_does_not_count() -> None:
    """Every group has a direction and a label of its own: held-out groups say nothing about each other."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(20, 24))[GROUPS] * 5 + states(6) * 0.1
    labels = rng.normal(size=20)[GROUPS] + rng.normal(size=len(GROUPS)) * 0.01
    assert probe(x, labels, GROUPS).r2 < 0.3


@pytest.mark.parametrize(
    ("x", "labels", "groups"),
    [
        (np.zeros((4, 2)), np.zeros(4), np.arange(4)),
        (np.zeros((4, 2)), np.arange(3.0), np.arange(4)),
        (np.full((6, 2), np.nan), np.arange(6.0), np.arange(6)),
        (np.zeros((6, 2)), np.ones(6), np.arange(6)),
    ],
)
def test_what_cannot_be_probed_is_refused(x: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> None:
    with pytest.raises(sk.SinkscopeError, match="Expected"):
        probe(x, labels, groups)
