"""Tables of answers: what a cell is compared with, what is corrected, and pooling with and without weak tasks."""

from __future__ import annotations

from typing import Any

import pytest

from made_conditions import make_condition
from sinkscope.conditions import Condition
from sinkscope.results import accuracy
from sinkscope.results.accuracy import AnswerSet, Key
from sinkscope.results.rows import Answered
from sinkscope.statistics import paired
from sinkscope.study.units import ModelInfo

NONE = make_condition("none")
FACTS = {"m": ModelInfo("m", "m", False, "llada", {}, {})}


def answered(
    condition: Condition, right: set[int], n: int = 10, task: str = "t", setting: str = "", mass: float = 0.0
) -> Any:
    """Key and answers: problems `right` are right, a share `mass` of the attention was taken."""
    chunk = {
        "rows": [{"problem": i, "correct": i in right, "confidence": 0.5} for i in range(n)],
        "effect": {"mass": mass * n, "mass_seen": float(n)},
    }
    return ("m", setting, task, condition), AnswerSet({task: [chunk]})


def cells(*made: tuple[Key, AnswerSet]) -> dict[str, dict[str, Any]]:
    """Label of the condition → its cell."""
    return {row.label: row.to_dict() for row in accuracy.cells(FACTS, dict(made))}


def pooled(*made: tuple[Key, AnswerSet]) -> dict[Key, AnswerSet]:
    return accuracy.pool_tasks(dict(made))


def test_holm_is_over_k_within_one_kind_of_masking() -> None:
    ks = [make_condition("mask_sinks", k, "clean", "all") for k in (1, 5)]
    made = cells(
        answered(NONE, set(range(8))),
        *(answered(condition, set(range(8 - condition.k))) for condition in ks),
        answered(make_condition("mask_sinks", 5, "as_run", "all"), set(range(3))),
    )
    assert [cell["p_holm"] for cell in made.values()] == pytest.approx([1.0, 1.0, 2 * 0.0625, 0.0625])


def test_only_a_count_may_be_matched_by_another_ranking() -> None:
    sinks = make_condition("mask_sinks", 5, "as_run", "all")
    other = [answered(make_condition("mask_random", 5, "clean", "all", match), {0, 1}) for match in ("count", "mass")]
    found = cells(answered(NONE, {0, 1, 2}), answered(sinks, {0}), *other)[sinks.label]["controls"]
    assert set(found) == {"count"}
    own = answered(make_condition("mask_random", 5, "as_run", "all", "mass"), {0, 1}, mass=0.25)
    found = cells(answered(NONE, {0, 1, 2}), answered(sinks, {0}), *other, own)[sinks.label]["controls"]
    assert set(found) == {"count", "mass"} and found["mass"]["mass_share"] == pytest.approx(0.25)


def test_cells_say_whether_the_model_is_causal() -> None:
    made = dict([answered(NONE, {0})])
    for causal in (True, False):
        facts = {"m": ModelInfo("m", "m", causal, "llama", {}, {})}
        assert accuracy.cells(facts, made)[0].causal is causal


def test_pooled_cells_are_also_told_without_weak_tasks() -> None:
    sinks = make_condition("mask_sinks", 1, "clean", "all")
    easy = [answered(NONE, set(range(10)), task="easy"), answered(sinks, {0, 1}, task="easy", mass=0.5)]
    hard = [answered(NONE, {0}, 20, "hard"), answered(sinks, {0}, 20, "hard", mass=0.1)]
    both = accuracy.pooled_cells(FACTS, pooled(*easy, *hard))
    whole = {row.label: row.to_dict() for row in both}
    row, alone = whole[sinks.label], cells(*easy)[sinks.label]
    assert row["n"] == 30 and row["difference"] == pytest.approx(-8 / 30)  # as before
    assert row["weak"] == {"hard": 0.05} and row["able"] == {
        name: alone[name] for name in Answered.__dataclass_fields__
    }
    assert "able" not in alone
    none = accuracy.pooled_cells(FACTS, pooled(*hard))
    assert [row.able for row in none] == [None, None] and none[0].weak == {"hard": 0.05}


def test_points_of_a_sweep_are_corrected_together_and_weak_tasks_left_out() -> None:
    right = {"a": range(10, 20), "b": range(20), "c": range(18)}  # of 20; against the first: 10, 8 more
    made = [answered(NONE, set(numbers), 20, "easy", setting) for setting, numbers in right.items()]
    made += [answered(NONE, {0}, 20, "hard", setting) for setting in right]
    compared = accuracy.sweep_points(pooled(*made))
    rows = [row.to_dict() for row in compared]
    assert [row["setting"] for row in rows] == ["b", "c"] and [row["difference"] for row in rows] == [0.25, 0.2]
    for row, numbers in zip(rows, (range(20), range(18)), strict=True):
        alone = paired([i in right["a"] for i in range(20)], [i in numbers for i in range(20)])
        assert row["weak"] == {"hard": 0.05} and row["able"]["n"] == 20
        assert (row["able"]["difference"], row["able"]["p"]) == (alone.difference, alone.p)
    assert [row["p_holm"] for row in rows] == pytest.approx([2 * rows[0]["p"], rows[1]["p"]])
    assert rows[0]["able"]["p_holm"] == pytest.approx(2 * rows[0]["able"]["p"])


def test_a_task_that_one_point_of_a_sweep_can_do_counts() -> None:
    made = [answered(NONE, set(), 20, "t", "a"), answered(NONE, set(range(10)), 20, "t", "b")]
    (row,) = accuracy.sweep_points(pooled(*made))
    assert row.weak == {} and row.able is not None and row.able.difference == 0.5
