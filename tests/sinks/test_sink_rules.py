"""Each rule against its definition written out slowly, the paper's table of thresholds, and bad settings."""

import dataclasses
import math
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import autoregressive
from torch import Tensor

from sinkscope.errors import RuleError
from sinkscope.sinks.rules import RULES, Columns, HeadShare, Rule, Threshold, ZScore, register, rule_from_dict

FEW = settings(max_examples=30, deadline=None)


def columns_of(seed: int, heads: int, size: int) -> tuple[Tensor, int]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(heads, size, size, generator=generator) + 3 * torch.randn(heads, 1, size, generator=generator)
    return logits.softmax(-1).sum(1), size


def slow_unit(value: float, unit: str, queries: float, keys: int) -> float:
    mean = value / queries
    return {"sum": value, "mean": mean, "percent": 100 * mean, "uniform": mean * keys}[unit]


@FEW
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(2, 40),
    epsilon=st.floats(0, 6),
    unit=st.sampled_from(["sum", "percent", "mean", "uniform"]),
    missing=st.integers(0, 3),
)
def test_threshold_is_equation_3(seed: int, size: int, epsilon: float, unit: str, missing: int) -> None:
    received, queries = columns_of(seed, 3, size)
    alive = torch.arange(size) >= min(missing, size - 1)
    there = [j for j in range(size) if alive[j]]
    rule = Threshold(epsilon, unit=unit)
    marks, scores = rule.marks(received, queries, alive), rule.scores(received, queries, alive)
    for h in range(3):
        value = {j: slow_unit(received[h, j].item(), unit, queries, len(there)) for j in there}
        for j in range(size):
            others = [value[k] for k in there if k != j]
            if j not in value or not others:
                assert not marks[h, j]
                continue
            assert scores[h, j].item() == pytest.approx(value[j], rel=1e-5)
            margin = value[j] - sum(others) / len(others) - epsilon
            if abs(margin) > 1e-4:  # nearer than that, fp32 may fall on either side
                assert marks[h, j].item() == (margin > 0)


@FEW
@given(seed=st.integers(0, 10_000), size=st.integers(1, 40), k=st.floats(0, 4))
def test_zscore_counts_deviations_from_the_mean(seed: int, size: int, k: float) -> None:
    received, queries = columns_of(seed, 2, size)
    rule = ZScore(k)
    marks, scores = rule.marks(received, queries), rule.scores(received, queries)
    for h in range(2):
        values = [received[h, j].item() for j in range(size)]
        mean = sum(values) / size
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / size)
        for j, value in enumerate(values):
            z = (value - mean) / deviation if deviation > 1e-3 * mean else 0.0
            assert scores[h, j].item() == pytest.approx(z, abs=1e-3)
            if abs(z - k) > 1e-3:
                assert marks[h, j].item() == (z > k)


@FEW
@given(seed=st.integers(0, 10_000), size=st.integers(1, 20), epsilon=st.floats(0, 1))
def test_head_share_divides_by_the_queries_that_see_the_key(seed: int, size: int, epsilon: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, size, generator=generator) * 3
    causal = logits.masked_fill(torch.ones(size, size).triu(1).bool(), -torch.inf).softmax(-1)
    seen = torch.arange(size, 0, -1)
    both = {"causal": (causal, seen), "bidirectional": (logits.softmax(-1), None)}
    for attention, counts in both.values():
        rule = HeadShare(epsilon)
        marks = rule.marks(attention.sum(0), size, seen=counts)
        scores = rule.scores(attention.sum(0), size, seen=counts)
        for k in range(size):
            rows = range(k, size) if counts is not None else range(size)
            alpha = sum(attention[i, k].item() for i in rows) / len(rows)
            assert scores[k].item() == pytest.approx(alpha, abs=1e-5)
            if abs(alpha - epsilon) > 1e-5:
                assert marks[k].item() == (alpha > epsilon)


@pytest.mark.parametrize(
    ("unit", "size", "printed"),
    [
        ("sum", 64, 0.0618),
        ("sum", 170, 0.0234),
        ("sum", 320, 0.0125),
        ("percent", 64, 0.0452),
        ("percent", 170, 0.0357),
        ("percent", 320, 0.0330),
        ("mean", 64, None),
        ("mean", 170, None),
        ("mean", 320, None),
    ],
)
def test_threshold_3_fires_where_the_paper_table_says(unit: str, size: int, printed: float | None) -> None:
    """The mean attention that one key must draw, all others being equal, to be a sink at epsilon = 3."""

    def fires(drawn: float) -> bool:
        received = torch.full((size,), (1 - drawn) * size / (size - 1))
        received[7] = drawn * size
        marks = Threshold(3, unit=unit).marks(received, size)
        assert not marks[torch.arange(size) != 7].any()
        return bool(marks[7])

    if printed is None:
        assert not fires(1.0)
        return
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if fires(middle) else (middle, high)
    assert round(high, 4) == printed


def test_the_threshold_is_strict() -> None:
    received = torch.tensor([5.0, 1.0, 1.0, 1.0])  # exactly 4 above the mean of the others
    assert not Threshold(4).marks(received, 8).any()
    assert Threshold(3.5).marks(received, 8).tolist() == [True, False, False, False]


def test_sum_and_uniform_are_one_unit_for_a_whole_bidirectional_map_and_differ_for_few_queries() -> None:
    received, queries = columns_of(3, 4, 32)
    assert torch.equal(Threshold(3).marks(received, queries), Threshold(3, unit="uniform").marks(received, queries))
    two_rows = received / queries * 2  # two queries that attend like the average one
    assert not Threshold(3).marks(two_rows, 2).any()
    uniform = Threshold(3, unit="uniform")
    assert torch.equal(uniform.marks(two_rows, 2), uniform.marks(received, queries))


def test_uniform_causal_attention_looks_like_a_sink_at_key_0_in_sums_but_not_to_head_share() -> None:
    trace = autoregressive(prompt=64, length=2, sink=None)
    received = trace.scores("all")[0, 0, 0]
    alive, seen = trace.alive()[0], trace.seen_by()
    queries = int(trace.query_count()[0])
    assert Threshold(3).marks(received, queries, alive)[0]
    assert not HeadShare(0.3).marks(received, queries, alive, seen[0])[:60].any()


@pytest.mark.parametrize("rule", [Threshold(1), ZScore(1), HeadShare(0.1)])
def test_counts_and_masks_may_stop_at_the_leading_dimensions(rule: Rule) -> None:
    received = torch.stack([columns_of(seed, 3, 10)[0] for seed in range(2)])  # [batch, head, key]
    alive = torch.ones(2, 10, dtype=torch.bool)
    alive[1, :4] = False
    received = received * alive[:, None]
    queries = torch.tensor([10, 6])
    marks = rule.marks(received, queries, alive)
    for b in range(2):
        for h in range(3):
            assert torch.equal(marks[b, h], rule.marks(received[b, h], int(queries[b]), alive[b]))
    assert marks.any()
    assert not marks[1, :, :4].any()


@pytest.mark.parametrize("rule", [Threshold(0), ZScore(0), HeadShare(0)])
def test_no_queries_no_sink_and_no_nan(rule: Rule) -> None:
    assert not rule.marks(torch.zeros(2, 5), torch.tensor([0, 0])).any()
    assert torch.isfinite(rule.scores(torch.zeros(2, 5), torch.tensor([0, 0]))).all()


def test_one_key_alone_has_no_others_to_exceed() -> None:
    assert not Threshold(0).marks(torch.tensor([4.0]), 4).any()


def test_fp16_scores_of_even_attention_have_no_outlier() -> None:
    received = (torch.ones(170) + 1e-4 * torch.randn(170, generator=torch.Generator().manual_seed(0))).half()
    assert not ZScore(2).marks(received, 170).any()


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Threshold(-1), "epsilon"),
        (lambda: Threshold(float("nan")), "epsilon"),
        (lambda: Threshold(float("inf")), "epsilon"),
        (lambda: Threshold("3"), "epsilon"),
        (lambda: Threshold(True), "epsilon"),
        (lambda: Threshold(3, unit="metres"), "metres"),
        (lambda: Threshold(3, group="everybody"), "everybody"),
        (lambda: ZScore(-0.5), "k"),
        (lambda: HeadShare(-0.1), "epsilon"),
        (lambda: rule_from_dict({"rule": "nonsense"}), "threshold"),
        (lambda: rule_from_dict({"epsilon": 3}), "None"),
        (lambda: rule_from_dict({"rule": "zscore", "epsilon": 3}), "epsilon"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(make: object, word: str) -> None:
    with pytest.raises(RuleError, match=word) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", [Threshold(2.5, unit="percent", group="masked"), ZScore(2), HeadShare(0.8)])
def test_rules_survive_as_plain_data(rule: Rule) -> None:
    assert rule_from_dict(rule.to_dict()) == rule
    assert hash(rule) == hash(dataclasses.replace(rule))


def test_a_rule_from_outside_takes_its_place() -> None:
    @register
    @dataclasses.dataclass(frozen=True)
    class Top(Rule):
        """The n largest keys."""

        name: ClassVar[str] = "top_of_the_test"
        n: int = 2

        @property
        def unit(self) -> str:
            return "sum"

        def score(self, columns: Columns) -> Tensor:
            return columns.received

        def mark(self, columns: Columns) -> Tensor:
            least = columns.received.topk(self.n, -1).values[..., -1:]
            return columns.received >= least

    try:
        rule = rule_from_dict({"rule": "top_of_the_test", "n": 1, "group": "masked"})
        assert rule.marks(torch.tensor([1.0, 5.0, 2.0]), 8).tolist() == [False, True, False]
        with pytest.raises(RuleError, match="exists already"):
            register(type("Again", (Top,), {}))
        nameless = type("Nameless", (Rule,), {})
        with pytest.raises(RuleError, match="needs a class attribute"):
            register(nameless)
    finally:
        del RULES._things["top_of_the_test"]
