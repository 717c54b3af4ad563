"""The table of heads: every measure against plain loops, and every class on traces made to be of that class."""

import dataclasses
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import autoregressive, diffusion, full, random_trace
from slow_heads import slow_head

from sinkscope.errors import RuleError, TraceError
from sinkscope.sinks import HeadShare, Rule, Threshold, ZScore
from sinkscope.tracing import Trace
from sinkscope.tracing.heads import Classes, by_layer, head_dynamics

trace_module = importlib.import_module("sinkscope.tracing.trace")  # the package has a function of that name
STEPS = 16  # of a made diffusion trace: 4 prompt tokens, 4 blocks of 4, one token per step
BLOCK_STARTS = [4 + t // 4 * 4 for t in range(STEPS)]
FRONTIER = [19 - t for t in range(STEPS)]  # the rightmost mask where tokens are committed from the right


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 7),
    layers=st.integers(1, 3),
    rule=st.sampled_from([Threshold(1), Threshold(3), Threshold(8, unit="percent"), ZScore(1.5), HeadShare(0.2)]),
)
def test_every_measure_equals_plain_loops(seed: int, steps: int, layers: int, rule: Rule) -> None:
    trace = random_trace(seed, steps=steps, layers=layers)
    table = head_dynamics(trace, rule, Classes(split_queries=3, split_support=0.8))
    assert len(table) == layers * 2
    for row in table.iter_rows(named=True):
        slow = slow_head(trace, rule, row["layer"], row["head"], least=3, support=0.8)
        for name, value in slow.items():
            expected = value if value is None else pytest.approx(value, rel=1e-4, abs=1e-4)
            assert row[name] == expected, name
        move = "relocating" if row["relocating"] else "intermittent"
        assert row["motion"] == (move if row["class"] == "moving" else row["class"])
    named = {"layer", "head", "class", "motion", "direction", "unit", "group", "rule"}
    assert set(table.columns) == named | set(slow)  # nothing in the table is left uncompared


def row_of(trace: Trace, head: int = 0, **thresholds: float) -> dict[str, object]:
    return head_dynamics(trace, classes=Classes(**thresholds)).row(head, named=True)  # type: ignore[arg-type]


def test_static_at_0() -> None:
    row = row_of(diffusion([[[0] * STEPS]]))
    assert (row["class"], row["direction"], row["home"]) == ("static", None, 0)
    assert (row["lives"], row["lifetime"], row["births"], row["deaths"]) == (1, 16, 0, 0)
    assert (row["displacement"], row["drift"], row["jaccard"], row["temporal_variance"]) == (0, 0, 1, 0)
    assert row["strength"] == pytest.approx(0.6 * 20)  # in sums: 60 % of the attention of 20 queries
    assert row["absorption"] == pytest.approx(0.6)


def test_moving_right_with_the_blocks() -> None:
    row = row_of(diffusion([[BLOCK_STARTS]]))
    assert (row["class"], row["direction"]) == ("moving", "right")
    assert (row["to_block"], row["to_block_deviation"]) == (0, 0)
    assert (row["lives"], row["lifetime"], row["births"], row["moves"]) == (4, 4, 3, 3)
    assert row["drift"] == pytest.approx(1, abs=0.1)
    assert row["to_frontier"] == pytest.approx(-1.5)  # the frontier runs ahead within each block


def test_moving_left_with_the_frontier_though_each_key_lives_one_step() -> None:
    row = row_of(diffusion([[FRONTIER]], order="left"))
    assert (row["class"], row["direction"]) == ("moving", "left")
    assert (row["to_rightmost_mask"], row["to_rightmost_mask_deviation"]) == (0, 0)
    assert row["drift"] == pytest.approx(-1)
    assert (row["one_step_share"], row["jaccard"]) == (1, 0)


def test_a_head_relocates_only_if_its_main_sink_changes_place_and_no_key_stands() -> None:
    relocates = [3] * 8 + [12] * 8
    with_a_gap = [3] * 6 + [None] * 4 + [12] * 6
    vanishes = [3] * 8 + [None] * 8
    flickers = [3, None] * 8
    hops = [3, 12] * 8  # one step each, on no path: a flash
    stands = [3] * 16
    leaves_once = [3] * 13 + [12] * 3  # 3 is a sink in 81 % of the steps
    paths = [relocates, with_a_gap, vanishes, flickers, hops, stands, leaves_once, BLOCK_STARTS]
    table = head_dynamics(diffusion([[path] for path in paths]))
    assert table["relocating"].to_list() == [True, True, False, False, False, False, False, True]
    assert table["main_keys"].to_list() == [2, 2, 1, 1, 2, 1, 2, 4]
    assert table["standing"].to_list() == pytest.approx([0.5, 0.375, 0.5, 0.5, 0.5, 1.0, 13 / 16, 0.25])
    assert table["class"].to_list()[2] == "moving"  # which today's class calls so though it never changes place
    assert by_layer(table)["relocating"].item() == pytest.approx(3 / 8)
    moving_left = head_dynamics(diffusion([[FRONTIER]], order="left"))
    assert moving_left["relocating"].to_list() == [True]  # each key lives one step, on a path


def test_a_key_that_stands_beside_a_moving_one_is_no_relocation() -> None:
    """The largest sink changes place, but another key is a sink all the while."""
    trace = diffusion([[[3] * 8 + [12] * 8]])
    received = full(trace)
    received[:, 0, 0, :, 7] += 0.3 * received[:, 0, 0].sum(-1)
    row = row_of(trace)
    assert (row["main_keys"], row["standing"], row["relocating"]) == (2, 1.0, False)


def test_one_step_flash() -> None:
    once = [None] * 7 + [11] + [None] * 8
    twice = [None, 3, *[None] * 9, 15, *[None] * 4]
    hopping = [int(p) for p in torch.tensor([3, 9, 1, 14, 6, 2, 17, 8, 0, 12, 5, 19, 4, 10, 7, 13])]
    table = head_dynamics(diffusion([[once], [twice], [hopping]]))
    assert table["class"].to_list() == ["flash"] * 3
    assert table["flashes"].to_list() == [1, 2, 16]
    assert table["direction"].to_list() == [None] * 3


def test_split_by_the_kind_of_query() -> None:
    split = [[18] * STEPS, [1] * STEPS, [1] * STEPS]
    row = row_of(diffusion([split]))
    assert (row["class"], row["split_share"]) == ("split", 1)
    assert row["split_steps"] == 9  # both kinds have 4 queries or more at steps 4 … 12
    assert row_of(diffusion([split]), split_queries=6)["split_steps"] == 5
    # Each kind's sink must be worth some queries: 4.5 of them only at half-time, when 0.6 of 8 go to either.
    assert row_of(diffusion([split]), split_support=4.5)["split_share"] == pytest.approx(1 / 9)
    # A second sink that the other kind uses as well is no sink of its own.
    assert row_of(diffusion([[[1] * STEPS, [1] * STEPS, [18] * STEPS]]))["split_share"] == 0
    # All queries together hide it: the key of the committed ones is a sink of the whole map nearly always.
    whole = row_of(diffusion([split]), split_steps=10)
    assert (whole["class"], whole["home"]) == ("static", 1)
    # The prompt's queries can be counted to the committed ones: then the first steps compare as well.
    assert row_of(diffusion([split]), split_prompt=True)["split_steps"] == 13


def test_none() -> None:
    row = row_of(diffusion([[[None] * STEPS]]))
    assert (row["class"], row["presence"], row["lives"]) == ("none", 0, 0)
    for name in ("home", "lifetime", "jaccard", "drift", "to_block", "spatial_variance"):
        assert row[name] is None
    assert row["entropy_relative"] == pytest.approx(1)


def test_a_sink_that_vanishes_is_moving_without_direction() -> None:
    row = row_of(diffusion([[[5] * 6 + [None] * 10]]))
    assert (row["class"], row["direction"], row["deaths"]) == ("moving", None, 1)


def test_thresholds_can_be_moved() -> None:
    trace = diffusion([[[5] * 6 + [None] * 10]])
    assert row_of(trace, static=0.3)["class"] == "static"
    assert row_of(diffusion([[FRONTIER]], order="left"), trend_steps=17)["class"] == "flash"
    for wrong in (
        {"static": 1.5},
        {"flash": -0.1},
        {"split_steps": 0},
        {"trend": float("nan")},
        {"trend_steps": 2.5},
        {"split_support": -1},
    ):
        with pytest.raises(RuleError, match=next(iter(wrong))):
            Classes(**wrong)  # type: ignore[arg-type]


def test_a_sink_of_a_single_step_generation_is_static() -> None:
    trace = diffusion([[[3] * STEPS]])
    row = row_of(trace.select(steps=slice(0, 1)))
    assert (row["class"], row["jaccard"], row["drift"]) == ("static", None, None)


def test_an_autoregressive_trace_has_a_static_sink_at_0() -> None:
    table = head_dynamics(autoregressive())
    row = table.row(0, named=True)
    assert (row["class"], row["home"], row["home_share"], row["unit"]) == ("static", 0, 1, "uniform")
    assert (row["to_rightmost_mask"], row["split_share"]) == (None, None)
    assert row["to_frontier"] == pytest.approx(-(5 + 3.5))


def test_an_autoregressive_trace_can_be_cut_to_its_later_steps() -> None:
    trace = autoregressive(prompt=5, length=8)
    cut = head_dynamics(trace.select(steps=slice(3, 8)), HeadShare(0.3)).row(0, named=True)
    assert (cut["class"], cut["home"], cut["presence"]) == ("static", 0, 1)
    assert cut["to_frontier"] == pytest.approx(-(5 + 3 + 2))  # steps 3 … 7 decide the positions 8 … 12
    assert cut["strength"] == pytest.approx(0.7)


def test_a_group_without_queries_at_a_step_has_no_sink_there() -> None:
    trace = diffusion([[[0] * STEPS]])
    row = head_dynamics(trace, Threshold(3, unit="uniform", group="committed")).row(0, named=True)
    assert row["presence"] == pytest.approx(15 / 16)  # nothing is committed before the first step
    assert row["strength"] == pytest.approx(0.6 * 20)


def test_layers_in_chunks_give_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_trace(5, steps=6, layers=5)
    whole = head_dynamics(trace, Threshold(1))
    monkeypatch.setattr(trace_module, "CHUNK", 1)
    assert head_dynamics(trace, Threshold(1)).equals(whole)


def test_the_number_of_threads_is_given_back_on_error_too() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        head_dynamics(random_trace(1))
        assert torch.get_num_threads() == before + 1
        broken = random_trace(1)
        full(broken)[0] = torch.inf
        with pytest.raises(TraceError):
            head_dynamics(broken)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def summary(trace: Trace, kept: int) -> Trace:
    top = full(trace).topk(kept, -1)
    return dataclasses.replace(
        trace, received=None, layer_mean=full(trace).mean(2), top_keys=top.indices.int(), top_scores=top.values
    )


def test_summary_form_that_kept_every_key_gives_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_trace(6, layers=3)
    monkeypatch.setattr(trace_module, "CHUNK", 1)
    assert head_dynamics(summary(trace, 12), Threshold(1)).equals(head_dynamics(trace, Threshold(1)))


def test_summary_form_with_few_keys_still_has_the_sinks() -> None:
    trace = diffusion([[[0] * STEPS], [BLOCK_STARTS]])
    table, whole = head_dynamics(summary(trace, 2)), head_dynamics(trace)
    exact = ["class", "home", "lives", "lifetime", "drift", "to_block", "presence"]
    assert table.select(exact).equals(whole.select(exact))
    assert table["strength"].to_list() == pytest.approx(whole["strength"].to_list())


def test_sinks_by_depth() -> None:
    trace = diffusion([[[0] * STEPS], [[None] * STEPS]])
    two = dataclasses.replace(trace, received=torch.cat([full(trace), full(trace)[:, :, [0, 0]]], 1))
    layers = by_layer(head_dynamics(two))
    assert layers["layer"].to_list() == [0, 1]
    assert layers["static"].to_list() == [0.5, 1]
    assert layers["none"].to_list() == [0.5, 0]
    assert layers["sinks"].to_list() == [0.5, 1]
    assert layers["agreement"].to_list() == [1, 1]  # both layers' mean over heads peaks at key 0


def test_nan_and_emptiness_are_refused() -> None:
    trace = diffusion([[[0] * STEPS]])
    full(trace)[3, 0, 0, 1, 2] = torch.nan
    with pytest.raises(TraceError, match="NaN"):
        head_dynamics(trace)
    empty = dataclasses.replace(
        trace, received=full(trace)[:0], queries=trace.queries[:0], canvas=trace.canvas[:1], blocks=trace.blocks[:0]
    )
    with pytest.raises(TraceError, match="at least one step"):
        head_dynamics(empty)
