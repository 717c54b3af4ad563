"""Every verdict by its stated rule, on rows made for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_rows import around, cell, control, dynamics, heads, mechanism, none, scored, tables
from sinkscope.study.analysis.verdicts import verdicts

from sinkscope.results.rows import Compared, Heads, PooledCell, SweepPoint
from sinkscope.statistics import change_interval


def found(margin: float = 0.05, **given: list[Any]) -> dict[str, tuple[str, str]]:
    """Name of a verdict → value and figures."""
    rows = verdicts(tables(**given), margin)
    for row in rows:
        assert row.because.endswith(".") and row.line is not None and row.line.startswith(f"{row.value}: ")
        assert "\n" not in row.line and len(row.line) <= 160
    return {row.name: (row.value, row.because) for row in rows}


def masked(*cells: PooledCell, accuracy: float = 0.5, margin: float = 0.05, **words: Any) -> tuple[str, str]:
    return found(margin, pooled=[none(accuracy, causal=cells[0].causal, **words), *cells])["masking_clean"]


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        ([cell(2), cell(1, k=5)], "robust"),
        ([cell(2), cell(60, k=5)], "robust up to K=1"),
        ([cell(2), cell(12, k=5), cell(60, k=10)], "robust up to K=1"),  # what is undecided is not robust
        ([cell(60), cell(2, k=5)], "dependent"),
        ([cell(60, p_primary=0.04)], "dependent"),
        ([cell(2, controls={"count": control(40)})], "robust"),  # random keys cost less still: told, not judged
    ],
)
def test_robust_and_dependent_by_the_whole_interval(cells: list[PooledCell], value: str) -> None:
    assert masked(*cells)[0] == value
    weak = [replace(row, able=None) for row in cells]
    assert masked(*weak, accuracy=0.05)[0] == "too weak to say"


@pytest.mark.parametrize(("lost", "n"), [(0, 1), (1, 1), (0, 20), (3, 40), (12, 200)])
def test_few_problems_decide_nothing_and_say_how_many_would(lost: int, n: int) -> None:
    value, _ = masked(cell(lost, n=n))
    assert value.startswith("undecided (needs about n = ")
    needed = int("".join(sign for sign in value if sign.isdigit()))
    assert needed > n
    low, high = change_interval(lost * needed / n, 0, needed)
    assert low > -0.05 or high < -0.05


def test_a_loss_of_about_the_margin_is_undecided_however_many_there_are() -> None:
    assert masked(cell(500, n=10_000))[0] == "undecided (the loss is about the margin)"


def test_a_primary_comparison_is_dependent_only_by_its_corrected_p() -> None:
    assert masked(cell(60, p_primary=0.06))[0].startswith("undecided")


def test_the_margin_is_the_studys() -> None:
    assert masked(cell(12))[0].startswith("undecided") and masked(cell(12), margin=0.15)[0] == "robust"
    assert masked(cell(60), margin=0.5)[0] == "robust"


def test_robust_without_a_control_says_so() -> None:
    value, why = masked(cell(0, controls={}))
    assert value == "robust, no control" and "no control with as many random keys" in why
    assert masked(cell(0, controls={}), cell(60, k=5))[0] == "robust up to K=1, no control"
    assert masked(cell(0), cell(60, k=5, controls={}))[0] == "robust up to K=1"


def test_what_sinks_and_random_keys_took_stands_beside_the_difference() -> None:
    controls = {"count": control(0, mass=0.05), "mass": control(0, mass=0.24)}
    why = masked(cell(4, controls=controls))[1]
    assert why.startswith("K=1: -2.0 [-5.0, -0.1], 20 % of the attention, p 0.500; K=1 less count-matched random keys")
    for taken in (0.14, 0.26):
        why = masked(cell(4, controls={**controls, "mass": control(0, mass=taken)}))[1]
        assert f"mass-matched random keys, which took {100 * taken:.0f} %: +0.0 [" in why


def test_pooled_numbers_are_those_of_the_tasks_that_the_model_can_do() -> None:
    rows = [none(0.3, weak={"recall": 0.04}), cell(6, weak={"recall": 0.04})]
    strong = [none(0.6, n=100), cell(30, n=100)]
    pooled = [replace(row, able=other.able) for row, other in zip(rows, strong, strict=True)]
    value, why = found(pooled=pooled)["masking_clean"]
    assert value == "dependent" and why.startswith("K=1: -30.0")
    assert why.endswith("60.0 % right with nothing masked (n = 100); too weak: recall (4.0 % right).")


def test_an_arm_is_judged_by_its_last_row_where_that_was_run() -> None:
    last, column = cell(60, rows="last", causal=True), cell(0, causal=True)
    value, why = masked(column, last)
    assert value == "dependent" and "ranked by its last row" in why
    value, why = masked(column)
    assert value == "robust" and "ranked by columns" in why
    value, why = masked(cell(0), cell(60, rows="last"))  # of a diffusion model
    assert value == "robust" and "ranked" not in why


@pytest.mark.parametrize(
    "extra", [{"above": {"rule": "zscore", "k": 2.0}}, {"keep_self": True}, {"kinds": "content"}, {"per": "model"}]
)
def test_masking_with_further_conditions_is_not_judged(extra: dict[str, Any]) -> None:
    assert masked(cell(0), cell(100, k=5, **extra))[0] == "robust"
    signs = found(pooled=[none(), cell(100, **extra), cell(0)])["arm_like"]
    assert signs[0] == "criteria met: 0 of 1"


def collapsed(accuracy: float = 0.5, causal: bool = True, lost: int = 60, **position: Any) -> tuple[str, str] | None:
    words: dict[str, Any] = {"causal": causal, "accuracy": accuracy}
    rows = [
        none(**words), cell(80, rows="last", **words), cell(2, "mask_random", rows="last", match="count", **words),
        cell(lost, "mask_positions", k=0, rows=None, **{"positions": [0], "since": "second", **position}, **words),
    ]  # fmt: skip
    return found(pooled=rows).get("collapse")


def test_collapse_is_about_position_0_of_an_arm_that_can_do_something() -> None:
    value = collapsed()
    assert value is not None and value[0] == "about sinks"
    other = collapsed(lost=10)
    assert other is not None and other[0] == "not about sinks alone"
    assert collapsed(since="first") is None and collapsed(positions=[0, 1]) is None and collapsed(positions=[3]) is None
    assert collapsed(causal=False) is None
    weak = collapsed(accuracy=0.05)
    assert weak is not None and weak[0] == "too weak to say" and "no task reaches 10 %" in weak[1]


def test_signs_of_an_arm_leave_out_accuracy_where_there_is_none() -> None:
    value, why = found(pooled=[none(), cell(60)], dynamics=[dynamics()])["arm_like"]
    assert value == "criteria met: 2 of 2" and "one masked sink: -30.0" in why
    value, why = found(pooled=[none(0.05), cell(5, accuracy=0.0)], dynamics=[dynamics()])["arm_like"]
    assert value == "criteria met: 1 of 1" and why.endswith("; no task reaches 10 % right.")


@pytest.mark.parametrize(
    ("shares", "value"),
    [
        ({"moving": 0.08, "flash": 0.92}, "flashing"),
        ({"moving": 0.4, "flash": 0.3, "static": 0.3}, "mixed"),
        ({"moving": 0.5, "static": 0.3, "none": 0.2}, "moving"),
        ({"static": 0.3, "moving": 0.2, "none": 0.5}, "static"),
        ({"split": 0.6, "moving": 0.4}, "split"),
        ({"moving": 0.2, "none": 0.8}, "few"),
    ],
)
def test_sinks_are_called_what_half_of_the_heads_that_have_any_do(shares: dict[str, float], value: str) -> None:
    assert found(dynamics=[dynamics(**shares)])["sinks"][0] == value


def test_an_arm_is_called_by_its_columns_so_far() -> None:
    rows = [dynamics(flash=0.92, moving=0.08, columns=Heads(**heads(static=0.9, moving=0.1)))]
    value, why = found(dynamics=rows)["sinks"]
    assert value == "static" and "by columns so far per row that sees the key" in why


def test_sinks_are_not_spread_where_key_0_draws_most() -> None:
    assert found(dynamics=[dynamics(start=0.28, key_0=0.57)])["place"][0] == "start"
    assert found(dynamics=[dynamics(start=0.28, key_0=0.2)])["place"][0] == "spread"
    assert found(dynamics=[dynamics(start=0.6, key_0=0.2)])["place"][0] == "start"


def test_a_diffusion_model_that_was_only_scored_is_no_arm() -> None:
    told = {causal: found(dynamics=[dynamics()], likelihood=[scored(-0.1, causal=causal), scored(0.0, "none", causal=causal)])
            for causal in (True, False)}  # fmt: skip
    assert "is an ARM" in told[True]["arm_like"][0] and "is an ARM" not in told[False]["arm_like"][0]


def test_the_arm_is_not_called_unlike_one() -> None:
    rows = [none(causal=True), cell(0, causal=True, rows="last")]
    assert found(pooled=rows, dynamics=[dynamics(start=0.1)])["arm_like"][0] == "is an ARM; criteria met: 0 of 2"


def battery(*losses: tuple[int, int], weak: bool = False) -> tuple[str, str]:
    """A task per loss: answers lost, problems."""
    rows = []
    for number, (lost, n) in enumerate(losses):
        rows += [none(task=f"t{number}", n=n), cell(lost, task=f"t{number}", n=n)]
    if weak:
        rows += [none(0.05, task="hard", n=40), cell(0, accuracy=0.05, task="hard", n=40)]
    return found(cells=rows, pooled=[none()])["tasks_k1"]


def test_tasks_are_uneven_only_by_intervals_that_say_something() -> None:
    assert battery((20, 40), (0, 40), (0, 40))[0] == "uneven"
    assert battery((4, 40), (0, 40), (0, 40))[0] == "even within the intervals"
    value, why = battery((12, 40), (8, 40), (0, 2))
    assert value == "even within the intervals" and "t2 +0.0 [-65.8, +65.8] (n = 2)" in why
    assert battery((10, 10), (0, 2), (0, 2))[0] == "too few to say"


def test_weak_tasks_are_left_out_of_the_battery() -> None:
    value, why = battery((12, 40), (12, 40), weak=True)
    assert value == "even within the intervals"
    assert why.endswith("; too weak: hard (5.0 % right).") and "hard +0.0" not in why
    rows = [row for i in range(3) for row in (none(0.05, task=f"t{i}"), cell(accuracy=0.05, task=f"t{i}"))]
    assert found(cells=rows, pooled=[none(0.05)])["tasks_k1"][0] == "too weak to say"


def test_the_mechanism_must_be_more_than_random_keys_do() -> None:
    (value, why), alike = (
        found(pooled=[none()], mechanism=[mechanism(0.5, beyond)])["mechanism"] for beyond in (0.4, 0.05)
    )
    assert value == "both" and alike[0] == "neither"
    assert "confidence sinks gap -50.00 [-60.00, -40.00]; confidence gap beyond random -40.00 [-50.00, -30.00]" in why
    assert "delay sinks gap +0.50 [" in why


def test_a_delay_is_judged_where_the_number_of_commits_is_free() -> None:
    for late, value in ((0.5, "both"), (0.0, "in part")):
        free = {
            name: around(late)
            for name in ("free_delay_sinks", "free_delay_beyond_random", "free_delay_sinks_gap",
                         "free_delay_gap_beyond_random")
        }  # fmt: skip
        said, why = found(pooled=[none()], mechanism=[mechanism(0.5, 0.4, free_problems=20, **free)])["mechanism"]
        assert said == value and "20 of them with commits by a threshold" in why
        assert f"free delay sinks +{late:.2f}" in why
    row = mechanism(0.5, 0.4, free_problems=3, **free)
    rows = verdicts(tables(pooled=[none()], mechanism=[row]))
    assert next(one.line for one in rows if one.name == "mechanism") == (
        "in part: lower confidence at 1 of 1 K, later: too few to say, where tokens depended on sinks"
    )


def test_an_entropy_is_told_in_nats() -> None:
    _, why = found(pooled=[none()], mechanism=[mechanism(0.5, 0.4, "nats")])["mechanism"]
    assert "confidence sinks gap -0.50 [-0.60, -0.40]" in why


def test_the_point_of_a_sweep_is_named_where_there_are_several() -> None:
    points = ("block=8", "block=4")
    pooled = [row for point in points for row in (none(setting=point), cell(60 * (point != points[0]), setting=point))]
    traces = [dynamics(point, static=float(point == points[0])) for point in points]
    of = found(pooled=pooled, dynamics=traces, mechanism=[mechanism(0.5, 0.4)])
    for name in ("sinks", "place", "masking_clean", "arm_like", "mechanism"):
        assert of[name][1].startswith("At block=8: "), name
    assert of["masking_clean"][0] == "robust" and of["sinks"][0] == "static"
    for name, (_, why) in found(pooled=pooled[:2], dynamics=traces[:1]).items():
        assert "At block" not in why, name


def point(setting: str, p: float, p_holm: float, weak: dict[str, float] | None = None, able: bool = True) -> SweepPoint:
    numbers: dict[str, Any] = {
        "difference": 0.2,
        "difference_low": 0.1,
        "difference_high": 0.3,
        "p": p,
        "p_holm": p_holm,
    }
    strong = Compared(n=100, lost=0, won=20, **numbers) if able else None
    return SweepPoint("m", "all", setting, "block=8", lost=0, won=20, weak=weak or {}, able=strong, **numbers)


def test_points_of_a_sweep_differ_by_corrected_p() -> None:
    rows = [
        point("block=4", 0.03, 0.06),
        point("block=2", 0.001, 0.002, {"recall": 0.02}),
        point("block=1", 1, 1, {}, False),
    ]
    value, why = found(pooled=[none()], settings=rows)["settings"]
    assert value == "1 of 2 differ" and "block=4 +20.0 [+10.0, +30.0], p 0.060;" in why
    assert "p 0.002; block=2 too weak: recall (2.0 % right)" in why and "block=1 no task reaches 10 % right" in why
    assert found(pooled=[none()], settings=rows[2:])["settings"][0] == "too weak to say"
