"""Objectives, optimiser and intervals against their plain definitions."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from lab.data import rng_of, shares
from lab.evaluate import wilson
from lab.objectives import Rows, even_ratios, loss_sum, masked, next_token
from lab.optimiser import Optimisation, learning_rate, orthogonalise
from lab.recipe import Objective, Optimiser

MASK = 3


@pytest.fixture
def rows():
    ids = torch.arange(10, 10 + 2 * 20).reshape(2, 20)
    return Rows(ids, torch.tensor([5, 8]), torch.tensor([12, 15]))


def test_ratios_are_spread_evenly():
    ratios = np.sort(even_ratios(64, rng_of(0, 0, 0), 0.0))
    assert ((ratios >= np.arange(64) / 64) & (ratios <= (np.arange(64) + 1) / 64)).all()


def test_the_prompt_is_kept_and_the_count_is_exact(rows):
    ratio = np.array([0.4, 1.0])
    targets = masked(rows, ratio, Objective(whole=0.0, padding=1.0), MASK, rng_of(0, 0, 0))
    hidden = targets.ids == MASK
    assert hidden.sum(1).tolist() == [6, 12]  # 0.4 of 15, all of 12
    assert not hidden[0, :5].any()
    assert not hidden[1, :8].any()
    assert torch.equal(targets.labels, rows.ids)
    assert torch.allclose(targets.weight.sum(1), torch.ones(2))
    assert torch.equal(targets.weight > 0, hidden)


def test_whole_rows_hide_the_prompt_too(rows):
    targets = masked(rows, np.array([1.0, 1.0]), Objective(whole=1.0), MASK, rng_of(0, 0, 0))
    assert bool((targets.ids == MASK).all())


def test_blockwise_rows_are_states_of_block_decoding(rows):
    objective = Objective(whole=0.0, blockwise=1.0, block=4)
    for step in range(20):
        targets = masked(rows, np.array([0.5, 0.5]), objective, MASK, rng_of(0, step, 0))
        for row, (prompt, end) in enumerate(((5, 12), (8, 15))):
            asked = targets.weight[row].nonzero()[:, 0]
            active = (int(asked[0]) - prompt) // 4 * 4 + prompt
            assert active < end
            assert not (targets.ids[row, :active] == MASK).any()
            assert (targets.ids[row, active + 4 :] == MASK).all()
            assert (asked < active + 4).all()


def test_filling_weighs_less(rows):
    targets = masked(rows, np.array([1.0, 1.0]), Objective(whole=0.0, padding=0.25), MASK, rng_of(0, 0, 0))
    assert torch.isclose(targets.weight[0, 15], 0.25 * targets.weight[0, 6])


def test_next_token_asks_nothing_after_the_answer(rows):
    weight = next_token(rows, Objective(prompt=0.1)).weight
    assert (weight[0, 12:] == 0).all()
    assert weight[0, 0] == 0
    assert torch.isclose(weight[0, 3], 0.1 * weight[0, 7])


@pytest.mark.parametrize("shift", [False, True])
def test_loss_is_the_weighted_cross_entropy(small, rows, tmp_path, shift):
    from lab.build import build_module

    module = build_module(small(), 60)
    targets = masked(rows, np.array([0.5, 0.9]), Objective(whole=0.0), MASK, rng_of(0, 1, 0))
    logits = module(targets.ids, use_cache=False).logits
    if shift:
        logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
    each = nn.functional.cross_entropy(logits.flatten(0, 1), targets.labels.flatten(), reduction="none").view(2, 20)
    assert torch.allclose(loss_sum(module, targets, shift), (each * targets.weight).sum(), atol=1e-5)


def test_orthogonalise_brings_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 16, 16), (2, 24, 8), (2, 8, 24)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape), rounds=8))
        assert float(values.min()) > 0.5 and float(values.max()) < 1.4


@pytest.mark.parametrize("matrices", ["muon", "adamw"])
def test_both_optimisers_fit_a_small_problem(small, matrices, tmp_path):
    from lab.tiny import TinyRun

    run = TinyRun(small(optimiser={"matrices": matrices, "warmup": 2, "matrix_rate": 0.01}, steps=30), tmp_path)
    losses = [run.one_step().loss for _ in range(25)]
    assert np.mean(losses[-3:]) < 0.85 * np.mean(losses[:3])


def test_adamw_is_torchs_adamw():
    torch.manual_seed(0)
    one, two = nn.Linear(4, 3), nn.Linear(4, 3)
    two.load_state_dict(one.state_dict())
    settings = Optimiser(
        matrices="adamw", rate=0.01, weight_decay=0.0, clip=1e9, warmup=1, decay=0.0, betas=(0.9, 0.99)
    )
    mine, theirs = Optimisation(one, settings), torch.optim.AdamW(two.parameters(), 0.01, (0.9, 0.99), weight_decay=0.0)
    for step in range(5):
        x = torch.randn(7, 4)
        for module in (one, two):
            module(x).square().sum().backward()
        mine.step(step, 5)
        theirs.step()
        theirs.zero_grad()
    assert torch.allclose(one.weight, two.weight, atol=1e-6)


def test_the_rate_rises_stays_and_falls():
    settings = Optimiser(warmup=10, decay=0.5)
    rates = [learning_rate(step, 100, settings) for step in range(100)]
    assert rates[0] == 0.1
    assert rates[10:50] == [1.0] * 40
    assert rates[-1] == pytest.approx(0.02)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_shares_add_up():
    counts = shares({"a": 1.0, "b": 2.0, "c": 0.5}, 33, rng_of(0, 0, 0))
    assert sum(counts.values()) == 33
    assert counts["b"] > counts["a"] > counts["c"]
    assert list(shares({"c": 0.5, "b": 2.0, "a": 1.0}, 33, rng_of(0, 0, 0)).items()) == list(counts.items())


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (450, 500, 0.8706, 0.9234)]
)
def test_wilson_against_published_values(correct, n, low, high):
    assert wilson(correct, n) == pytest.approx((low, high), abs=2e-4)
