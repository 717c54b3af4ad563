"""Commit rules against their obvious twins."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.decoding import Decode
from sinkscope.decoding.choose import confidence_of, most_confident, truncated
from sinkscope.decoding.samplers.dream import dream_count
from sinkscope.decoding.samplers.llada import quota
from sinkscope.decoding.samplers.parallel import above_threshold, factor_counts

CONFIDENCES = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12)


@given(masks=st.integers(0, 200), steps=st.integers(1, 60))
def test_quota_hands_out_everything_evenly_and_early(masks: int, steps: int) -> None:
    shares = [quota(masks, steps, step) for step in range(steps)]
    dealt = [0] * steps
    for token in range(masks):  # deal the masks out like cards
        dealt[token % steps] += 1
    assert shares == dealt


def fast_dllm_factor(confidence: list[float], factor: float) -> int:
    """The authors' loop in words: thresholds by rank, stop at the first that fails; a failure at the end is none."""
    ordered = sorted(confidence, reverse=True)
    thresholds = [1 - factor / (rank + 1) for rank in range(1, len(ordered) + 1)]
    thresholds[0] = -1.0  # the best is always taken
    for index, threshold in enumerate(thresholds):
        if ordered[index] < threshold:
            break
    else:
        return len(ordered)
    return index + 1 if index in (0, len(ordered) - 1) else index


@given(confidence=CONFIDENCES, factor=st.floats(0.05, 3))
def test_factor_counts(confidence: list[float], factor: float) -> None:
    row = torch.full((len(confidence) + 3,), -torch.inf, dtype=torch.float64)
    row[1 : len(confidence) + 1] = torch.tensor(confidence, dtype=torch.float64)
    assert factor_counts(row.unsqueeze(0), factor) == [fast_dllm_factor(confidence, factor)]


def test_no_open_position_takes_none() -> None:
    closed = torch.full((1, 4), -torch.inf)
    assert factor_counts(closed, 1.0) == [0]
    assert not above_threshold(closed, 0.5).any()
    assert not most_confident(closed, [3], torch.tensor([0])).any()


@given(confidence=CONFIDENCES, threshold=st.floats(0, 1, width=32))
def test_threshold_takes_all_above_and_at_least_the_best(confidence: list[float], threshold: float) -> None:
    row = torch.tensor([confidence])
    chosen = above_threshold(row, threshold)[0]
    above = {index for index, value in enumerate(confidence) if value >= torch.tensor(threshold)}
    found = set(chosen.nonzero().flatten().tolist())
    assert found == above or (not above and len(found) == 1 and confidence[found.pop()] == max(confidence))


@given(values=st.permutations(range(9)), count=st.integers(0, 12), padding=st.integers(0, 4))
def test_most_confident_takes_the_largest(values: list[int], count: int, padding: int) -> None:
    row = torch.tensor([[-torch.inf] * padding + [float(value) for value in values]])
    chosen = most_confident(row, [count], torch.tensor([padding]))[0, padding:]
    assert {value for value, taken in zip(values, chosen.tolist(), strict=True) if taken} == set(
        range(9 - min(count, 9), 9)
    )


@given(masks=st.integers(1, 64), steps=st.integers(1, 64))
def test_dream_commits_everything_in_the_end(masks: int, steps: int) -> None:
    times = torch.linspace(1, 1e-3, steps + 1)
    left = masks
    for step in range(steps):
        left -= dream_count(torch.tensor([left]), times, step)
        assert left >= 0
    assert left == 0


@given(st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=20), st.floats(0.05, 0.99), st.integers(1, 25))
def test_truncation_keeps_the_crossing_token_then_the_top_k(logits: list[float], top_p: float, top_k: int) -> None:
    row = torch.tensor([logits], dtype=torch.float64)
    kept = truncated(row, top_p, None)[0] > torch.finfo(torch.float64).min
    probabilities = row.softmax(-1)[0]
    # Removed are exactly those before which the more probable ones had already crossed the limit.
    for index, probability in enumerate(probabilities):
        before = float(probabilities[probabilities > probability].sum())
        if before > top_p + 1e-9:
            assert not kept[index]
        if float(probabilities[probabilities >= probability].sum() - probability) <= top_p - 1e-9:
            assert kept[index]
    fewest = truncated(row, None, top_k)[0] > torch.finfo(torch.float64).min
    kth = sorted(logits, reverse=True)[min(top_k, len(logits)) - 1]
    assert fewest.tolist() == [value >= kth for value in row[0].tolist()] or kth not in row[0].tolist()


@given(st.lists(st.floats(-6, 6, width=32), min_size=2, max_size=12))
def test_confidence_kinds(logits: list[float]) -> None:
    p = torch.tensor([logits], dtype=torch.float64).softmax(-1)
    chosen = p.argmax(-1)
    ordered = sorted(p[0].tolist(), reverse=True)
    assert float(confidence_of(p, chosen, "probability")) == ordered[0]
    assert float(confidence_of(p, chosen, "margin")) == ordered[0] - ordered[1]
    entropy = -sum(share * float(torch.tensor(share, dtype=torch.float64).log()) for share in ordered)
    assert abs(float(confidence_of(p, chosen, "entropy")) + entropy) < 1e-8


def test_settings_survive_a_round_trip() -> None:
    for made in (
        Decode.llada(length=16, block=8, steps=8, late_eos=True, eos_id=1, eot_id=2),
        Decode.dream(length=16, algorithm="entropy", algorithm_temperature=0.2),
        Decode.mmada(length=16, stop="eot"),
        Decode.parallel(length=16, block=8, factor=1.0, cache="dual"),
        Decode.autoregressive(length=16, temperature=0.5, seed=3, noise="per_row"),
    ):
        assert Decode.from_dict(made.to_dict()) == made
