"""The tables of sinks, the curves over scores, and the shares of tokens, against plain loops and known traces."""

import dataclasses
from collections import Counter

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import MASK, NEWLINE, STOP, VOCABULARY, WORD, autoregressive, diffusion, full, random_trace

from sinkscope.errors import RuleError, TraceError
from sinkscope.sinks import HeadShare, Rule, Threshold, ZScore
from sinkscope.tracing import Trace
from sinkscope.tracing.sinks import find, histogram, sweep, token_shares

FEW = settings(max_examples=20, deadline=None)
RULES = st.sampled_from(
    [Threshold(1), Threshold(5, unit="percent", group="masked"), ZScore(1.5, group="prompt"), HeadShare(0.2)]
)
GROUP_AXIS = ("masked", "committed", "prompt")


def slow_sinks(trace: Trace, rule: Rule) -> list[tuple[int, int, int, int, float]]:
    found = []
    for t in range(trace.steps):
        for layer in range(trace.layers):
            for head in range(trace.heads_count):
                maps, counts = full(trace)[t, layer, head], trace.queries[t]
                g = GROUP_AXIS.index(rule.group) if rule.group != "all" else None
                column, queries = (maps.sum(0), int(counts.sum())) if g is None else (maps[g], int(counts[g]))
                marks, scores = rule.marks(column, queries), rule.scores(column, queries)
                found += [(t, layer, head, j, scores[j].item()) for j in range(trace.positions) if marks[j]]
    return found


@FEW
@given(seed=st.integers(0, 10_000), rule=RULES)
def test_find_lists_every_sink_once_in_order(seed: int, rule: Rule) -> None:
    trace = random_trace(seed)
    table = find(trace, rule)
    slow = slow_sinks(trace, rule)
    assert list(table.select("step", "layer", "head", "position").iter_rows()) == [row[:4] for row in slow]
    assert table["score"].to_list() == pytest.approx([row[4] for row in slow], rel=1e-5)
    for row in table.iter_rows(named=True):
        identity = int(trace.canvas[row["step"], row["position"]])
        assert (row["id"], row["token"], row["kind"]) == (identity, *VOCABULARY[identity])
        assert (row["unit"], row["group"], row["rule"]) == (rule.unit, rule.group, rule.name)


def test_find_without_sinks_is_an_empty_table_with_all_columns() -> None:
    table = find(diffusion([[[None] * 16]]))
    assert table.is_empty()
    expected = ["step", "layer", "head", "position", "id", "token", "kind", "score", "unit", "group", "rule"]
    assert table.columns == expected
    assert table.schema["score"] == pl.Float32


def test_an_id_outside_the_vocabulary_is_shown_by_its_number() -> None:
    trace = dataclasses.replace(diffusion([[[0] * 16]]), vocabulary={})
    assert find(trace)["token"][0] == f"#{WORD}"


@settings(max_examples=6, deadline=None)  # each looks for sinks under 16 rules
@given(seed=st.integers(0, 10_000), group=st.sampled_from(["all", "committed"]))
def test_the_sweep_agrees_with_the_rule_at_every_epsilon(seed: int, group: str) -> None:
    trace = random_trace(seed)
    table = sweep(trace, [0, 0.5, 2, 7.25], ["sum", "percent", "mean", "uniform"], group)
    for row in table.iter_rows(named=True):
        rule = Threshold(row["epsilon"], unit=row["unit"], group=group)
        assert row["sinks"] == len(find(trace, rule))
        counted = int((trace.queries.sum(-1) if group == "all" else trace.queries[:, 1]).count_nonzero())
        assert row["keys"] == counted * 2 * 2 * 12
        assert row["non_sinks"] == pytest.approx(1 - row["sinks"] / row["keys"])


def test_the_sweep_of_a_known_trace() -> None:
    table = sweep(diffusion([[[0] * 16], [[None] * 16]]), units=["sum"])
    # One of 40 keys draws 12 = 11.58 above the mean of the others: a sink at every epsilon up to 10.
    assert table["non_sinks"].to_list() == pytest.approx([39 / 40] * 11)
    with pytest.raises(RuleError, match="at least one epsilon"):
        sweep(diffusion([[[0] * 16]]), [])
    with pytest.raises(RuleError, match="epsilon"):
        sweep(diffusion([[[0] * 16]]), [-1])


@FEW
@given(seed=st.integers(0, 10_000), unit=st.sampled_from(["sum", "percent", "mean"]), bins=st.integers(1, 9))
def test_the_histogram_counts_every_key_once(seed: int, unit: str, bins: int) -> None:
    trace = random_trace(seed)
    table = histogram(trace, bins, unit)
    scores = Threshold(0, unit=unit).scores(trace.scores(), trace.queries.sum(-1)).flatten().tolist()
    assert table["count"].sum() == len(scores)
    for low, high, count in table.select("low", "high", "count").iter_rows():
        # Scores on an edge may fall to either side in fp32.
        inside = sum(low + 1e-4 < s < high - 1e-4 for s in scores)
        near = sum(low - 1e-4 <= s <= high + 1e-4 for s in scores)
        assert inside <= count <= near


def test_a_histogram_needs_bins_and_leaves_out_keys_that_do_not_exist() -> None:
    with pytest.raises(RuleError, match="at least one bin"):
        histogram(diffusion([[[0] * 16]]), 0)
    # Prompt of 5, then a key more a step: 5 + 6 + … + 12.
    assert histogram(autoregressive())["count"].sum() == sum(range(5, 13))


def test_token_shares_count_sinks_and_how_often_the_token_is_there() -> None:
    trace = diffusion([[[0] * 16], [[19] * 16]])
    trace.canvas[:, 0] = NEWLINE
    trace.canvas[:, 1] = STOP
    table = token_shares(trace)
    by_token = {row["id"]: row for row in table.iter_rows(named=True)}
    on_canvas = Counter(trace.canvas[:-1].flatten().tolist())
    assert set(by_token) == {NEWLINE, STOP, WORD, MASK}
    for identity, share in {NEWLINE: 0.5, STOP: 0, WORD: 0, MASK: 0.5}.items():
        base = on_canvas[identity] / (16 * 20)
        row = by_token[identity]
        assert (row["share"], row["base"]) == pytest.approx((share, base))
        assert row["enrichment"] == pytest.approx(share / base)
        assert row["share_low"] is None  # one generation says nothing about others
        assert row["enrichment_high"] is None
    assert table["share"].is_sorted(descending=True)
    kinds = table.group_by("kind").agg(pl.col("share").sum())
    assert dict(kinds.iter_rows()) == {"newline": 0.5, "mask": 0.5, "punctuation": 0, "word": 0}


def test_intervals_come_from_whole_generations() -> None:
    at_newline, at_mask = diffusion([[[0] * 16]]), diffusion([[[19] * 16]])
    for trace in (at_newline, at_mask):
        trace.canvas[:, 0] = NEWLINE
    same = token_shares([at_newline] * 5).row(by_predicate=pl.col("id") == NEWLINE, named=True)
    assert (same["share"], same["share_low"], same["share_high"], same["generations"]) == (1, 1, 1, 5)
    mixed = token_shares([at_newline, at_mask] * 8, seed=1).row(by_predicate=pl.col("id") == NEWLINE, named=True)
    assert mixed["share"] == pytest.approx(0.5)
    # 16 generations of which each falls on a side: the binomial's deviation is 1/8, its 95 % interval ± 1/4.
    assert mixed["share_low"] == pytest.approx(0.25, abs=0.07)
    assert mixed["share_high"] == pytest.approx(0.75, abs=0.07)
    assert mixed["enrichment_low"] == pytest.approx(mixed["share_low"] / mixed["base"], rel=1e-6)


def test_token_shares_refuse_what_cannot_be_pooled() -> None:
    trace = diffusion([[[0] * 16]])
    other = dataclasses.replace(trace, vocabulary={**VOCABULARY, WORD: ("dog", "word")})
    with pytest.raises(TraceError, match="one vocabulary"):
        token_shares([trace, other])
    with pytest.raises(TraceError, match="got none"):
        token_shares([])


def test_without_any_sink_shares_are_null_and_base_rates_stay() -> None:
    table = token_shares([diffusion([[[None] * 16]])] * 2)
    assert table["share"].null_count() == len(table)
    assert table["base"].sum() == pytest.approx(1)


def test_an_autoregressive_trace_counts_only_keys_that_exist() -> None:
    trace = autoregressive()
    table = find(trace, Threshold(3, unit="uniform"))
    assert table.select("step", "position").rows() == [(t, 0) for t in range(8)]
    assert find(trace, HeadShare(0.3, group="committed"))["step"].to_list() == list(range(1, 8))
    shares = token_shares(trace)
    assert shares["base"].to_list() == [1]


@pytest.mark.parametrize("function", [find, sweep, histogram, token_shares])
def test_nan_and_emptiness_are_refused_everywhere(function: object) -> None:
    trace = diffusion([[[0] * 16]])
    full(trace)[3, 0, 0, 1, 2] = torch.nan
    with pytest.raises(TraceError, match="NaN"):
        function(trace)  # type: ignore[operator]
    empty = dataclasses.replace(
        trace, received=full(trace)[:0], queries=trace.queries[:0], canvas=trace.canvas[:1], blocks=trace.blocks[:0]
    )
    with pytest.raises(TraceError, match="at least one step"):
        function(empty)  # type: ignore[operator]
