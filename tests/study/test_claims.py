"""The paper's claims by their stated rules, and no verdict that contradicts another: on made cases and committed runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_rows import around, cell, control, dynamics, heads, mechanism, none, scored, tables
from pydantic import TypeAdapter

from sinkscope.report.overview import class_rows
from sinkscope.study.analysis.claims import agreement, claims
from sinkscope.study.analysis.verdicts import plain_dynamics, verdicts
from sinkscope.study.results import (
    Claim,
    Curve,
    Dynamics,
    Heads,
    Interval,
    LikelihoodChange,
    PooledCell,
    Results,
    Tables,
    Verdict,
)
from sinkscope.study.summary import SHORT, summary

DOCS = Path(__file__).parents[2] / "docs"
STRONG = {"rule": "head_share", "group": "all", "epsilon": 0.3}


def found(**rows: list[Any]) -> dict[str, Claim]:
    made = claims(tables(**rows), 0.05)
    for claim in made:
        assert len(claim.figure) <= 60 and claim.because.endswith(".") and claim.values and claim.name in SHORT
        assert all(value.low <= value.value <= value.high for value in claim.values)
    return {claim.name: claim for claim in made}


@pytest.mark.parametrize(
    ("holds", "word"),
    [
        ([], "undecided"), ([None], "undecided"), ([True], "agrees"), ([True, None], "agrees in part"),
        ([True, False], "agrees in part"), ([False, False], "disagrees"), ([False, None], "disagrees"),
        ([False, None, None], "undecided"),
    ],
)  # fmt: skip
def test_words_of_agreement(holds: list[bool | None], word: str) -> None:
    assert agreement(holds) == word


def masked(structural: int, strong: int, top: int, n: int = 400) -> list[PooledCell]:
    words: dict[str, Any] = {"n": n}
    return [
        none(**words), cell(structural, kinds="structural", **words), cell(strong, above=STRONG, **words),
        cell(top, controls={"count": control(0), "mass": control(4, mass=0.2)}, **words),
        cell(8, "mask_random", match="mass", **words),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        ((2, 2, 2), "agrees"), ((2, 2, 200), "agrees in part"), ((200, 200, 200), "disagrees"),
        ((20, 20, 20), "undecided"), ((200, 20, 200), "disagrees"),
    ],
)  # fmt: skip
def test_one_sink_of_a_dlm(lost: tuple[int, int, int], verdict: str) -> None:
    claim = found(pooled=masked(*lost))["one_sink"]
    assert claim.verdict == verdict
    labels = [value.label for value in claim.values]
    assert {"m: structural key", "m: strong sink", "m: any top key", "m: any top key, mass-matched random"} == set(
        labels
    )
    assert "beyond mass-matched random keys" in claim.because


def test_masking_that_takes_hardly_anything_is_no_test() -> None:
    rows = [none(n=400), cell(0, above=STRONG, n=400, mass=0.003), cell(200, n=400)]
    claim = found(pooled=rows)["one_sink"]
    assert claim.verdict == "disagrees" and "strong sink (at most 0.3 % of attention taken): no test" in claim.because


def test_models_that_differ_agree_in_part_and_weak_ones_say_nothing() -> None:
    other = [none(model="o", n=400), cell(200, model="o", n=400)]
    assert found(pooled=[none(n=400), cell(2, n=400), *other])["one_sink"].verdict == "agrees in part"
    assert "one_sink" not in found(pooled=[none(0.05), cell(2, accuracy=0.05)])


@pytest.mark.parametrize(
    ("nats", "mass", "verdict"),
    [(-0.01, 0.3, "agrees"), (-0.5, 0.3, "disagrees"), (-0.05, 0.3, "undecided"), (-0.05, 0.001, "undecided")],
)
def test_one_sink_of_a_dlm_that_was_only_scored(nats: float, mass: float, verdict: str) -> None:
    """The margin of 5 points is 5 % of the probability per token: 0.051 nats."""
    rows = [
        scored(nats, mass=mass),
        scored(-0.9, "mask_random", mass=0.2, match="mass"),
        scored(-2.0, causal=True, model="a"),
    ]
    claim = found(likelihood=rows)["one_sink"]
    assert claim.verdict == verdict and f"m {nats:+.2f}" in claim.figure
    assert [value.label for value in claim.values] == [
        "m: any top key (nats per token)",
        "m: any top key (nats per token), mass-matched random",
    ]
    assert "random keys up to its mass -0.90" in claim.because


def test_right_answers_and_likelihood_that_differ_agree_in_part() -> None:
    claim = found(pooled=[none(n=400), cell(200, n=400)], likelihood=[scored(0.0)])["one_sink"]
    assert claim.verdict == "agrees in part" and "points; m +0.00" in claim.figure


def arm(last: int, column: int, first: int) -> list[PooledCell]:
    words: dict[str, Any] = {"causal": True, "accuracy": 0.8, "n": 200}
    return [
        none(**words), cell(last, rows="last", **words), cell(column, **words),
        cell(first, "mask_positions", k=0, rows=None, positions=[0], since="second", **words),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        ((150, 150, 150), "agrees"),
        ((150, 150, 0), "agrees in part"),
        ((20, 0, 0), "disagrees"),
        ((80, 80, 80), "undecided"),
    ],
)
def test_the_sink_of_an_arm_is_vital_where_half_is_lost(lost: tuple[int, int, int], verdict: str) -> None:
    assert found(pooled=arm(*lost))["arm_sink"].verdict == verdict


def test_the_sink_of_an_arm_by_likelihood() -> None:
    for nats, verdict in ((-2.0, "agrees"), (-0.1, "disagrees")):
        row = LikelihoodChange(
            "m", {"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "last"}, "x", 4, 96, "nats per token", -5.0, -6.0,
            -4.0, nats, nats - 0.1, nats + 0.1, 0.1, 0.1, 0.1, 0.0,
        )  # fmt: skip
        assert found(likelihood=[row])["arm_sink"].verdict == verdict


def test_two_generations_decide_nothing() -> None:
    rows = [traced("dlm"), traced("arm", arm=True, static=0.9, key_0=0.5)]
    assert found(dynamics=rows)["sinks_exist"].verdict == "agrees"
    few = found(dynamics=[replace(row, generations=2) for row in rows])
    assert {claim.verdict for claim in few.values()} == {"undecided"}


def traced(model: str, arm: bool = False, **values: float) -> Dynamics:
    said = {"with_sink": 0.9, "static": 0.2, "key_0": 0.1, "structural": 0.8, "structural_base": 0.4, "deep_sinks": -1.0,
            "deep_strength": 1.0, **values}  # fmt: skip
    intervals: dict[str, Interval] = {name: around(value, 0.05) for name, value in said.items()}
    columns = Heads(**heads(static=said["static"], moving=1 - said["static"])) if arm else None
    return dynamics(model=model, intervals=intervals, columns=columns)


def test_claims_of_traces() -> None:
    good = found(dynamics=[traced("d"), traced("a", arm=True, static=0.9, key_0=0.6)])
    assert {claim.verdict for claim in good.values()} == {"agrees"}
    assert set(good) == {"sinks_exist", "moving", "structural", "deeper"}
    bad = found(
        dynamics=[
            traced("d", with_sink=0.1, static=0.9, structural=0.2, deep_sinks=1.0, deep_strength=-1.0),
            traced("a", arm=True, static=0.1, key_0=0.1),
        ]
    )
    assert {claim.verdict for claim in bad.values()} == {"disagrees"}
    assert found(dynamics=[traced("d", structural=0.6, structural_base=0.9)])["structural"].verdict == "agrees in part"
    assert found(dynamics=[traced("d", with_sink=0.22)])["sinks_exist"].verdict == "undecided"
    assert "moving" not in found(dynamics=[traced("d")])  # nothing to compare with


def test_the_threshold_is_judged_in_both_units_that_fit_the_paper() -> None:
    def curves(*shares: float) -> list[Curve]:
        units = ("sum", "percent", "uniform")
        return [Curve("d", "", "none", u, 3.0, s, s - 0.01, s + 0.01) for u, s in zip(units, shares, strict=False)]

    for shares, verdict in (((0.98, 0.98), "agrees"), ((0.98, 0.9, 0.5), "agrees in part"), ((0.9, 0.9), "disagrees")):
        assert found(dynamics=[traced("d")], curves=curves(*shares))["threshold"].verdict == verdict


def test_confidence_and_delay_are_two_halves_of_a_claim() -> None:
    late = {f"free_delay_{name}": around(0.5) for name in ("sinks_gap", "gap_beyond_random")}
    none_later = {name: around(0.0) for name in late}
    for words, gap, verdict in (
        (late, 0.5, "agrees"),
        (none_later, 0.5, "agrees in part"),
        (none_later, 0.0, "disagrees"),
    ):
        rows = [mechanism(gap, gap, problems=40, free_problems=20, **words)]
        assert found(mechanism=rows)["confidence"].verdict == verdict
    few = [mechanism(0.5, 0.5, problems=40, free_problems=3, **late)]
    assert found(mechanism=few)["confidence"].verdict == "agrees in part"  # three problems say nothing of the delay
    assert found(mechanism=[mechanism(0.0, 0.0, problems=5)])["confidence"].verdict == "undecided"


def contradictions(rows: Tables, judged: list[Verdict]) -> list[str]:
    """Sentences that a reader could not believe together."""
    said = {(row.model, row.name): row.value for row in judged}
    wrong = []
    for model in {row.model for row in judged}:
        row = plain_dynamics(rows.of(model).dynamics)
        causal = any(cell.causal for cell in rows.of(model).pooled)
        if row is not None:
            seen = row.columns or row
            for value, share in (("moving", seen.moving), ("static", seen.static), ("flashing", seen.flash)):
                if said[model, "sinks"] == value and share < (1 - seen.none) / 2:
                    wrong.append(f"{model}: {value} for {share}")
            if said.get((model, "place")) == "spread" and row.key_0 > 0.3:
                wrong.append(f"{model}: spread, and key 0 draws {row.key_0}")
        if causal and not said.get((model, "arm_like"), "is an ARM").startswith("is an ARM"):
            wrong.append(f"{model}: an ARM that is called {said[model, 'arm_like']}")
        masking = said.get((model, "masking_clean"), "")
        if masking.startswith("robust") and said.get((model, "collapse")) in ("about sinks", "not about sinks alone"):
            wrong.append(f"{model}: robust, and collapsing")
        why = next((row.because for row in judged if (row.model, row.name) == (model, "arm_like")), "")
        sign = next((part for part in why.split(";") if "one masked sink: " in part), None)
        if sign is not None and (masking == "dependent") != ("(yes)" in sign):
            wrong.append(f"{model}: {masking}, and {sign}")
    return wrong


def unexplained(judged: list[Verdict]) -> list[str]:
    """Criteria whose yes or no does not follow from the shares that are printed before it."""
    wrong = []
    for part in (part for row in judged if row.name == "arm_like" for part in row.because.split(";")):
        at_start, *first_key = [int(share) for share in re.findall(r"(\d+) %", part)] or [0]
        if "sinks at the start" in part and ("(yes)" in part) != (
            at_start > 50 or any(share > 30 for share in first_key)
        ):
            wrong.append(part)
    return wrong


CASES: dict[str, dict[str, list[Any]]] = {
    "moving for 8 % moving heads": {"dynamics": [dynamics(moving=0.08, flash=0.92)]},
    "an ARM with 0 of 2": {
        "pooled": [none(causal=True), cell(0, causal=True, rows="last")], "dynamics": [dynamics(start=0.1)],
    },
    "spread beside key 0": {"dynamics": [dynamics(start=0.2, key_0=0.57)]},
    "36 % at the start is yes": {"dynamics": [dynamics(start=0.36, key_0=0.36)]},
    "45 % at the start is no": {"dynamics": [dynamics(start=0.45, key_0=0.01)]},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_cases_that_contradicted_each_other(case: str) -> None:
    rows = tables(**CASES[case])
    assert contradictions(rows, verdicts(rows)) == [] and unexplained(verdicts(rows)) == []


def test_contradictions_are_seen() -> None:
    rows = tables(**CASES["spread beside key 0"])
    wrong = [Verdict("m", "sinks", "moving", "x."), Verdict("m", "place", "spread", "x.")]
    assert len(contradictions(rows, wrong)) == 2
    assert unexplained([Verdict("m", "arm_like", "criteria met: 1 of 1", "sinks at the start: 36 % (yes).")])


def committed() -> list[Path]:
    """Results of runs in the docs; logs of trainings, scores and benchmarks beside them are none."""
    found = []
    for path in sorted((DOCS / "results").rglob("*.json")):
        held = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(held, dict) and "cells" in held:
            found.append(path)
    return found


def test_there_are_committed_runs() -> None:
    assert {path.name for path in committed()} >= {"results.json", "strong.json", "thresholds.json", "values.json"}


@pytest.mark.parametrize("path", committed(), ids=lambda path: path.name)
def test_no_verdict_contradicts_another_on_committed_runs(path: Path) -> None:
    """Neither those that stand in the file, nor those that its rows give today, nor the bars of the report beside them."""
    typed = TypeAdapter(Results).validate_json(path.read_bytes())
    assert contradictions(typed, verdicts(typed)) == []
    assert contradictions(typed, list(typed.verdicts)) == []
    shown = {row["model"]: row for row in class_rows(typed.dynamics) if row["condition"] == "none"}
    for row in verdicts(typed):
        if row.name == "sinks" and row.value in ("moving", "static") and row.model in shown:
            have = shown[row.model]
            assert have[row.value] >= (1 - have["none"]) / 2, (row.model, row.value)
    text = summary(typed, Path("runs/x"), 60.0)
    assert len(text.splitlines()) <= 42 and max(map(len, text.splitlines())) <= 80
