"""The paper's claims by their stated rules, and no verdict that contradicts another: on made cases and committed runs."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_rows import around, cell, dynamics, heads, mechanism, none, scored, tables
from pydantic import TypeAdapter
from sinkscope.runs import summary as summaries
from sinkscope.study.analysis.verdicts import verdicts

from lab.experiments.verdict_simulation import worlds
from sinkscope.report.overview import class_rows
from sinkscope.results import matrix
from sinkscope.results.claims import claims
from sinkscope.results.rows import (
    Claim,
    Curve,
    Dynamics,
    Heads,
    Interval,
    Results,
    Tables,
    Verdict,
)
from sinkscope.study.run import Run

DOCS = Path(__file__).parents[2] / "docs"
SUMS: dict[str, Any] = {"accuracy": 0.9, "task": "sums"}
CONTRACT = ("name", "claim", "paper_model", "model", "verdict", "estimate", "low", "high", "unit", "n", "dose", "control",
            "because")  # fmt: skip
STRONG = {"rule": "head_share", "group": "all", "epsilon": 0.3}


def found(**rows: list[Any]) -> dict[str, Claim]:
    made = claims(tables(pooled=rows.get("cells", []), **rows), 0.05)  # pooled rows tell the points of a sweep
    for row in made:
        assert row.because.endswith(".") and row.name in matrix.SHORT and row.low <= row.estimate <= row.high
        assert ("No test: " in row.because) == (row.verdict == "no test") and len(matrix.figure(row)) <= 60
    return {row.name: row for row in made}


@pytest.mark.parametrize(
    ("lost", "n", "verdict"),
    [(0, 400, "supports"), (100, 400, "contradicts"), (15, 400, "undecided"), (0, 20, "undecided")],
)
def test_masking_sinks_of_a_dlm(lost: int, n: int, verdict: str) -> None:
    """The whole interval lies above or below a loss of 5 points."""
    for words, name in (({"above": STRONG}, "strong_sink"), ({}, "one_sink")):
        row = found(cells=[none(n=n, **SUMS), cell(lost, n=n, **SUMS, **words)])[name]
        assert row.verdict == verdict and row.unit == "points" and row.limit == -5.0
        assert (row.n, row.dose, row.estimate) == (n, 0.2, pytest.approx(-100 * lost / n))
        assert (row.needed is not None) == (verdict == "undecided")


def test_masking_is_no_test_without_strong_sinks_without_sinks_and_without_right_answers() -> None:
    top = cell(200, n=400, **SUMS)
    weak = found(cells=[none(n=400, **SUMS), cell(0, above=STRONG, n=400, mass=0.003, **SUMS), top])
    assert weak["strong_sink"].verdict == weak["one_sink"].verdict == "no test"
    few = found(cells=[none(n=400, **SUMS), top], dynamics=[traced("m", with_sink=0.01)])
    assert few["sinks_exist"].verdict == "contradicts" and few["one_sink"].verdict == "no test"
    unsolved = found(cells=[none(0.3, n=400, task="sums"), cell(100, n=400, accuracy=0.1, task="sums")])
    assert unsolved["one_sink"].verdict == "no test"


def test_the_control_of_a_masked_sink_is_random_keys_of_its_mass() -> None:
    rows = [none(n=400, **SUMS), cell(100, n=400, **SUMS)]
    assert found(cells=rows)["one_sink"].control is None
    count = cell(8, "mask_random", match="count", n=400, **SUMS)
    mass = cell(40, "mask_random", match="mass", n=400, mass=0.15, **SUMS)
    for more, estimate in (([count], -2.0), ([count, mass], -10.0)):
        control = found(cells=[*rows, *more])["one_sink"].control
        assert control is not None and control.estimate == pytest.approx(estimate)


def test_likelihood_cannot_show_that_masking_is_harmless() -> None:
    """It can show that masking is fatal; short of that, answers fall long before it does."""
    for nats in (0.0, -0.05, -2.0):
        assert found(likelihood=[scored(nats)])["one_sink"].verdict == "no test"
    for nats, verdict in ((-2.0, "supports"), (-0.1, "no test"), (-0.69, "no test")):
        assert found(likelihood=[scored(nats, causal=True)])["arm_sink"].verdict == verdict


@pytest.mark.parametrize(("lost", "verdict"), [(150, "supports"), (20, "contradicts"), (80, "undecided")])
def test_the_sink_of_an_arm_is_vital_where_half_is_lost(lost: int, verdict: str) -> None:
    words: dict[str, Any] = {"causal": True, "accuracy": 0.8, "n": 200, "task": "sums"}
    ways = [
        cell(lost, rows="last", **words), cell(lost, **words),
        cell(lost, "mask_positions", k=0, rows=None, positions=[0], since="second", **words),
    ]  # fmt: skip
    for one in ways:
        made = found(cells=[none(**words), one])
        assert made["arm_sink"].verdict == verdict and not {"one_sink", "strong_sink"} & set(made)


def test_conditions_and_models_have_rows_of_their_own() -> None:
    words: dict[str, Any] = {"causal": True, "accuracy": 0.8, "n": 200, "task": "sums"}
    rows = [none(**words), replace(cell(150, rows="last", **words), label="by last"), cell(150, **words)]
    made = claims(tables(cells=rows, pooled=rows, dynamics=[traced("tiny-mmada"), traced("tiny-sdar")]), 0.05)
    keys = [(row.name, row.model, row.condition) for row in made]
    assert len({*keys}) == len(keys) and sum(row.name == "arm_sink" for row in made) == 2
    assert {row.model: row.paper_model for row in made} == {"tiny-mmada": "MMaDA-8B", "tiny-sdar": None, "m": None}


def traced(model: str, arm: bool = False, width: float = 0.05, **values: float) -> Dynamics:
    said = {"with_sink": 0.9, "static": 0.2, "key_0": 0.1, "structural": 0.8, "structural_base": 0.4, "deep_sinks": -1.0,
            "deep_strength": 1.0, **values}  # fmt: skip
    intervals: dict[str, Interval] = {name: around(value, width) for name, value in said.items()}
    columns = Heads(**heads(static=said["static"], moving=1 - said["static"])) if arm else None
    return dynamics(model=model, intervals=intervals, columns=columns)


TRACED = {  # claim → the value that supports it, that contradicts it, that decides nothing
    "sinks_exist": ("with_sink", 0.9, 0.1, 0.22),
    "sinks_move": ("static", 0.2, 0.9, 0.52),
    "structural": ("structural", 0.8, 0.2, 0.45),
    "deeper_fewer": ("deep_sinks", -1.0, 1.0, 0.02),
    "deeper_stronger": ("deep_strength", 1.0, -1.0, 0.02),
}


@pytest.mark.parametrize("name", TRACED)
def test_claims_of_traces(name: str) -> None:
    value, *cases = TRACED[name]
    for share, verdict in zip(cases, ("supports", "contradicts", "undecided"), strict=True):
        row = traced("d", **{value: share})
        assert found(dynamics=[row])[name].verdict == verdict
        assert found(dynamics=[replace(row, generations=2)])[name].verdict == "no test"
    if name != "sinks_exist":
        assert found(dynamics=[traced("d", with_sink=0.01)])[name].verdict == "no test"


def test_a_claim_that_sinks_move_says_how_many_change_place() -> None:
    """A sink that only vanishes and comes back moves nowhere, though it does not stand still."""
    row = found(dynamics=[traced("d", static=0.2, relocating=0.11)])["sinks_move"]
    assert row.because.endswith("The main sink really changes place in 11 % of them.") and row.estimate == 20
    assert "changes place" not in found(dynamics=[traced("d")])["sinks_move"].because  # of an older run


def test_sinks_stand_still_where_the_paper_says_so() -> None:
    """LLaDA's move and Dream's shift; MMaDA's stand still, and so do an ARM's."""
    for model, name in (("tiny-llada", "sinks_move"), ("tiny-dream", "sinks_move"), ("tiny-mmada", "sinks_stand")):
        for static in (0.1, 0.9):
            row = found(dynamics=[traced(model, static=static)])[name]
            assert row.verdict == ("supports" if (static > 0.5) == (name == "sinks_stand") else "contradicts")
    for key_0, verdict in ((0.6, "supports"), (0.1, "contradicts"), (0.3, "undecided")):
        arm = found(dynamics=[traced("a", arm=True, static=0.9, key_0=key_0)])
        assert arm["sink_at_start"].verdict == verdict and arm["sinks_stand"].verdict == "supports"


def test_the_threshold_is_judged_in_each_unit_that_fits_the_paper() -> None:
    shares = {"sum": 0.98, "percent": 0.9, "uniform": 0.5}
    curves = [Curve("d", "", "none", unit, 3.0, share, share - 0.01, share + 0.01) for unit, share in shares.items()]
    made = found(dynamics=[traced("d")], curves=curves)
    assert made["threshold_sum"].verdict == "supports" and made["threshold_percent"].verdict == "contradicts"
    near = [replace(row, low=row.non_sinks - 0.05) for row in curves[:1]]
    assert found(dynamics=[traced("d")], curves=near)["threshold_sum"].verdict == "undecided"


def test_confidence_and_delay_are_two_claims() -> None:
    late = {f"free_delay_{name}": around(0.5) for name in ("sinks_gap", "gap_beyond_random")}
    made = found(mechanism=[mechanism(0.5, 0.5, problems=40, free_problems=20, **late)], dynamics=[traced("m")])
    assert made["confidence"].verdict == made["later"].verdict == "supports"
    made = found(mechanism=[mechanism(-0.5, -0.5, problems=40, free_problems=3, **late)], dynamics=[traced("m")])
    assert made["confidence"].verdict == "contradicts" and made["later"].verdict == "no test"
    for problems, verdict in ((40, "undecided"), (5, "no test")):
        made = found(mechanism=[mechanism(0.0, 0.0, problems=problems)], dynamics=[traced("m")])
        assert made["confidence"].verdict == verdict and "later" not in made
    weak = [none(n=400, **SUMS), cell(0, above=STRONG, n=400, mass=0.003, **SUMS)]
    made = found(mechanism=[mechanism(0.5, 0.5, problems=40)], cells=weak)
    assert made["confidence"].verdict == "no test"


def test_verdicts_are_right_where_the_truth_is_planted() -> None:
    """At the size of our runs: right in 90 %, and the opposite in no more than 2.5 %."""
    wanted = ("costs 0 points", "costs 15 points", "costs 40 points", "costs 70 points", "costs 10 points", "no sink",
              "20 % static", "85 % static")  # fmt: skip
    judged = [world for world in worlds() if world.n in (6, 200) and any(part in world.truth for part in wanted)]
    assert len(judged) == 9
    for number, world in enumerate(judged):
        rng = np.random.default_rng([3, number])
        came = Counter(world.draw(rng, world.n).verdict for _ in range(200))
        assert came[world.right] >= 180, (world, came)
        assert sum(came[one] for one in ("supports", "contradicts") if one != world.right) <= 5, (world, came)


def contradictions(rows: Tables, judged: list[Verdict]) -> list[str]:
    """Sentences that a reader could not believe together."""
    said = {(row.model, row.name): row.value for row in judged}
    wrong = []
    for model in {row.model for row in judged}:
        row = next((row for row in rows.of(model).dynamics if row.condition == "none"), None)
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
    held = json.loads(path.read_text(encoding="utf-8"))
    typed = TypeAdapter(Results).validate_python({**held, "claims": None})
    assert contradictions(typed, verdicts(typed)) == []
    assert contradictions(typed, list(typed.verdicts)) == []
    shown = {row["model"]: row for row in class_rows(typed.dynamics) if row["condition"] == "none"}
    for row in verdicts(typed):
        if row.name == "sinks" and row.value in ("moving", "static") and row.model in shown:
            have = shown[row.model]
            assert have[row.value] >= (1 - have["none"]) / 2, (row.model, row.value)


@pytest.mark.parametrize("path", committed(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_older_runs_open_and_get_claims_and_a_summary_of_one_screen(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are judged anew from their rows; the command prints two lines more than the summary."""
    monkeypatch.setattr(summaries, "activation", lambda: ". .venv/bin/activate && ")
    (tmp_path / "results.json").write_bytes(path.read_bytes())
    loaded = Run.load(tmp_path)
    rows = loaded.found.claims
    assert rows is not None and len({(row.name, row.model, row.condition) for row in rows}) == len(rows)
    assert all({*CONTRACT} <= {*row.to_dict()} for row in rows)
    lines = summaries.summary(loaded.found, Path("runs/x"), 60.0).splitlines()
    assert len(lines) <= 38 and max(map(len, lines)) <= 80
    assert not rows or lines[0].startswith("The paper's claims are ")
    full = loaded.summary(full=True)
    assert max(map(len, full.splitlines())) <= 80 and all(row.claim[:-1] in " ".join(full.split()) for row in rows)


def test_the_matrix_as_text_has_every_cell(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes((DOCS / "results" / "pair" / "pair.json").read_bytes())
    rows = Run.load(tmp_path).found.claims or []
    printed = list(matrix.lines(rows))[4:]
    marks = [mark for line in printed for mark in line[matrix.NAME :].split()]
    cells = matrix.cells(rows)
    models = list(dict.fromkeys(row.model for row in rows))
    assert marks == [
        matrix.MARKS[cells[name, model].verdict] for name in matrix.SHORT for model in models if (name, model) in cells
    ]


@pytest.mark.parametrize(
    "models",
    [
        [f"planted-{one}" for one in ("drain", "static", "moving", "carrier", "none")],
        [f"seed-llada-letters-{seed}" for seed in range(8)],
        ["GSAI-ML/LLaDA-8B-Instruct", "Dream-org/Dream-v0-Instruct-7B"],
    ],
)
def test_names_of_models_stay_apart_in_narrow_columns(models: list[str]) -> None:
    for room in (6, 11):
        made = matrix.column_heads(models, room)
        assert len({*made}) == len(models) and all(len(part) <= room for head in made for part in head)
