"""Every verdict by its stated rule, on rows made for it."""

from __future__ import annotations

from typing import Any

import pytest

from sinkscope.study.analysis import verdicts

Row = dict[str, Any]


def against(difference: float, p: float = 1.0, mass: float | None = None, width: float = 0.0) -> Row:
    """A comparison with a symmetric interval."""
    return {
        "difference": difference, "difference_low": difference - width, "difference_high": difference + width, "p_holm": p,
        "mass_share": mass,
    }  # fmt: skip


def cell(
    difference: float = 0.0, name: str = "mask_sinks", k: int = 1, rows: str | None = "all", accuracy: float = 0.5,
    controls: dict[str, Row] | None = None, weak: dict[str, float] | None = None, mass: float | None = 0.2,
    causal: bool = False, setting: str = "", **condition: Any,
) -> Row:  # fmt: skip
    """A pooled row; without a task that is strong enough where `accuracy` is below a tenth."""
    made = {
        "model": "m", "causal": causal, "task": "all", "setting": setting, "n": 100, "accuracy": accuracy,
        "condition": {"name": name, "k": k, "rank": "clean", "rows": rows, **condition}, **against(difference, 0.5, mass),
        "controls": {"count": against(0.0)} if controls is None else controls,
    }  # fmt: skip
    return {**made, "weak": weak or {}, "able": {**made} if accuracy >= 0.1 else None}


def none(accuracy: float = 0.5, **words: Any) -> Row:
    return cell(name="none", k=0, rows=None, accuracy=accuracy, controls={}, **words)


def found(**tables: list[Row]) -> dict[str, tuple[str, str]]:
    """Name of a verdict → value and sentence."""
    rows = verdicts.verdicts({**{name: [] for name in verdicts.TABLES}, **tables})
    assert all(row["because"].endswith(".") for row in rows)
    return {row["name"]: (row["value"], row["because"]) for row in rows}


def masked(*cells: Row, accuracy: float = 0.5, **words: Any) -> tuple[str, str]:
    return found(pooled=[none(accuracy, causal=cells[0]["causal"], **words), *cells])["masking_clean"]


def one(difference: float, control: float = 0.0, p: float = 1.0, k: int = 1) -> Row:
    return cell(difference, k=k, controls={"count": against(control, p)})


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        ([one(-0.05), one(0.02, k=5)], "robust"),
        ([one(-0.01), one(-0.06, k=5)], "robust up to K=1"),
        ([one(-0.04, -0.04, 0.01), one(-0.01, k=5)], "dependent"),  # worse than random keys
        ([one(-0.04, 0.04, 0.01)], "robust"),  # better than random keys
    ],
)
def test_robust_by_the_stated_rule(cells: list[Row], value: str) -> None:
    assert masked(*cells)[0] == value
    weak = [{**row, "able": None} for row in cells]
    assert masked(*weak, accuracy=0.05)[0] == "too weak to say"


def test_a_fifth_of_the_right_answers_is_too_much() -> None:
    value, why = masked(one(-0.04), accuracy=0.12)
    assert value == "dependent" and "33 % of the right answers lost" in why
    value, why = masked(one(-0.04), accuracy=0.2)
    assert value == "robust" and "right answers lost" not in why


def test_robust_without_a_control_says_so() -> None:
    value, why = masked(cell(0.0, controls={}))
    assert value == "robust, no control" and "no control with as many random keys" in why
    assert masked(cell(0.0, controls={}), cell(-0.1, k=5))[0] == "robust up to K=1, no control"
    assert masked(cell(0.0), cell(-0.1, k=5, controls={}))[0] == "robust up to K=1"


def test_what_was_taken_stands_behind_the_difference_and_a_missed_mass_is_told() -> None:
    controls = {"count": against(0.0, mass=0.05), "mass": against(0.0, mass=0.24)}
    why = masked(cell(-0.02, controls=controls))[1]
    assert "K=1: -2.0 [-2.0, -2.0] (20 % of attention taken), p 0.500; as many random keys" in why
    assert "random keys of the same mass" in why
    for taken in (0.14, 0.26):
        why = masked(cell(-0.02, controls={**controls, "mass": against(0.0, mass=taken)}))[1]
        assert f"random keys meant to match the mass (they took {100 * taken:.0f} %)" in why
        assert "of the same mass" not in why


def test_pooled_numbers_are_those_of_the_tasks_that_the_model_can_do() -> None:
    rows = [none(0.3, weak={"recall": 0.04}), cell(-0.03, weak={"recall": 0.04})]
    rows[0]["able"].update(accuracy=0.6, n=50)
    rows[1]["able"].update(against(-0.06, 0.5, 0.2))
    value, why = found(pooled=rows)["masking_clean"]
    assert value == "dependent" and why.startswith("60.0 % right with nothing masked (n = 50).")
    assert "Left out as too weak: recall (4.0 % right)." in why and "K=1: -6.0" in why


def test_an_arm_is_judged_by_its_last_row_where_that_was_run() -> None:
    last, column = cell(-0.3, rows="last", causal=True), cell(0.0, causal=True)
    value, why = masked(column, last)
    assert value == "dependent" and "Ranked by its last row." in why
    value, why = masked(column)
    assert value == "robust" and "Ranked by its columns; no ranking by its last row was run." in why
    value, why = masked(cell(0.0), cell(-0.3, rows="last"))  # of a diffusion model
    assert value == "robust" and "Ranked" not in why


@pytest.mark.parametrize("extra", [{"above": {"rule": "zscore", "k": 2.0}}, {"keep_self": True}])
def test_masking_with_further_conditions_is_not_judged(extra: Row) -> None:
    assert masked(cell(0.0), cell(-0.5, k=5, **extra))[0] == "robust"
    signs = found(pooled=[none(), cell(-0.5, **extra), cell(0.0)])["arm_like"]
    assert signs[0] == "0 of 1 signs"


def collapsed(accuracy: float = 0.5, causal: bool = True, **position: Any) -> tuple[str, str] | None:
    words: Row = {"causal": causal, "accuracy": accuracy}
    rows = [
        none(**words), cell(-0.4, rows="last", **words), cell(-0.01, "mask_random", rows="last", match="count", **words),
        cell(-0.3, "mask_positions", k=0, rows=None, **{"positions": [0], "since": "second", **position}, **words),
    ]  # fmt: skip
    return found(pooled=rows).get("collapse")


def test_collapse_is_about_position_0_of_an_arm_that_can_do_something() -> None:
    value = collapsed()
    assert value is not None and value[0] == "about sinks"
    assert collapsed(since="first") is None and collapsed(positions=[0, 1]) is None and collapsed(positions=[3]) is None
    assert collapsed(causal=False) is None
    weak = collapsed(accuracy=0.05)
    assert weak is not None and weak[0] == "too weak to say" and "no task reaches 10 %" in weak[1]


def dynamics(setting: str = "", condition: str = "none", static: float = 1.0) -> Row:
    shares = dict.fromkeys(("moving", "flash", "split", "none", "left", "right"), 0.0)
    places = {"first": 0.9, "start": 0.9, "prompt": 0.9, "masked": 0.0}
    return {
        "model": "m", "setting": setting, "condition": condition, "static": static, **shares, "lifetime": 2.0, "places": places,
        "absorption": 0.5, "generations": 3, "rule": "threshold", "epsilon": 3.0, "unit": "uniform",
    }  # fmt: skip


def test_signs_of_an_arm_leave_out_accuracy_where_there_is_none() -> None:
    value, why = found(pooled=[none(), cell(-0.2)], dynamics=[dynamics()])["arm_like"]
    assert value == "2 of 2 signs" and "one masked sink: -20.0" in why
    value, why = found(pooled=[none(0.05), cell(-0.05, accuracy=0.0)], dynamics=[dynamics()])["arm_like"]
    assert value == "1 of 1 signs" and "What one masked sink costs is left out: no task reaches 10 % right." in why


def battery(*losses: tuple[float, float, int], weak: bool = False) -> tuple[str, str]:
    """A task a loss: difference, half of its interval, problems."""
    rows = []
    for number, (difference, width, n) in enumerate(losses):
        words = {"task": f"t{number}", "n": n}
        rows += [none() | words, cell() | words | against(difference, width=width)]
    if weak:
        words = {"task": "hard", "n": 40}
        rows += [none(0.05) | words, cell(accuracy=0.05) | words | against(0.0, width=0.01)]
    return found(cells=rows, pooled=[none()])["tasks_k1"]


def test_tasks_are_uneven_only_by_intervals_that_say_something() -> None:
    assert battery((-0.3, 0.1, 40), (0.0, 0.1, 40), (0.0, 0.1, 40))[0] == "uneven"
    assert battery((-0.1, 0.1, 40), (0.0, 0.1, 40), (0.0, 0.1, 40))[0] == "even within the intervals"
    value, why = battery((-0.3, 0.2, 10), (-0.1, 0.2, 10), (0.0, 0.0, 2))
    assert value == "even within the intervals" and "t2 +0.0 [+0.0, +0.0] (n = 2, all alike: not counted)" in why
    value, why = battery((-0.3, 0.2, 20), (-0.1, 0.2, 20), (0.0, 0.0, 20))
    assert value == "uneven" and "not counted" not in why
    assert battery((-0.3, 0.2, 10), (0.0, 0.0, 2), (0.0, 0.0, 2))[0] == "too few to say"


def test_weak_tasks_are_left_out_of_the_battery() -> None:
    value, why = battery((-0.3, 0.1, 40), (-0.3, 0.1, 40), weak=True)
    assert value == "even within the intervals"
    assert why.endswith("Left out as too weak: hard (5.0 % right).") and "hard +0.0" not in why
    rows = [row | {"task": f"t{i}"} for i in range(3) for row in (none(0.05), cell(accuracy=0.05))]
    assert found(cells=rows, pooled=[none(0.05)])["tasks_k1"][0] == "too weak to say"


def mechanism(gap: float, beyond: float, unit: str = "points") -> Row:
    """Confidence falls by `gap`, commits come as much later; intervals of ± 0.1."""
    row: Row = {
        "model": "m",
        "k": 1,
        "problems": 9,
        "unit": unit,
        "confidence_sinks_high": -gap,
        "confidence_sinks_low": 0.0,
    }
    for what, sign in (("confidence", -1), ("delay", 1)):
        for name, value in (("sinks_gap", gap), ("gap_beyond_random", beyond)):
            row[f"{what}_{name}"] = {"value": sign * value, "low": sign * value - 0.1, "high": sign * value + 0.1}
    return row


def test_the_mechanism_must_be_more_than_random_keys_do() -> None:
    (value, why), alike = (
        found(pooled=[none()], mechanism=[mechanism(0.5, beyond)])["mechanism"] for beyond in (0.4, 0.05)
    )
    assert value == "both" and alike[0] == "neither"
    assert "-50.0 points where" in why
    assert "gap -50.00 [-60.00, -40.00]; -40.00 [-50.00, -30.00] beyond that under random keys" in why


def test_an_entropy_is_told_in_nats() -> None:
    _, why = found(pooled=[none()], mechanism=[mechanism(0.5, 0.4, "nats")])["mechanism"]
    assert "-0.5 nats where" in why and "gap -0.50 [-0.60, -0.40]" in why


def test_the_point_of_a_sweep_is_named_where_there_are_several() -> None:
    points = ("block=8", "block=4")
    pooled = [
        row for point in points for row in (none(setting=point), cell(-0.2 * (point != points[0]), setting=point))
    ]
    traces = [dynamics(point, static=float(point == points[0])) for point in points]
    of = found(pooled=pooled, dynamics=traces, mechanism=[mechanism(0.5, 0.4)])
    for name in ("sinks", "place", "masking_clean", "arm_like", "mechanism"):
        assert of[name][1].startswith("At block=8: "), name
    assert of["masking_clean"][0] == "robust" and of["sinks"][0] == "static"
    for name, (_, why) in found(pooled=pooled[:2], dynamics=traces[:1]).items():
        assert "At block" not in why, name


def point(setting: str, p: float, p_holm: float, weak: dict[str, float] | None = None, able: bool = True) -> Row:
    row = {"model": "m", "setting": setting, "against": "block=8", **against(0.1), "p": p}
    return {**row, "weak": weak or {}, "able": {**against(0.2, p_holm), "p": p} if able else None}


def test_points_of_a_sweep_differ_by_corrected_p() -> None:
    rows = [
        point("block=4", 0.03, 0.06),
        point("block=2", 0.001, 0.002, {"recall": 0.02}),
        point("block=1", 1, 1, {}, False),
    ]
    value, why = found(pooled=[none()], settings=rows)["settings"]
    assert value == "1 of 2 differ" and "block=4 +20.0 [+20.0, +20.0] (p 0.060)" in why
    assert "(p 0.002, without recall as too weak)" in why and "(no task reaches 10 % in either)" in why
    assert found(pooled=[none()], settings=rows[2:])["settings"][0] == "too weak to say"
