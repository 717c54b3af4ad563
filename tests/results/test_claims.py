"""Claims by their stated rules, on rows made by hand and on committed runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.experiments.verdict_simulation import worlds
from lab.rejudge import ROOT, committed_runs, rejudge
from made_rows import around, cell, dynamics, heads, mechanism, none, scored, tables
from sinkscope.results import findings as summaries
from sinkscope.results import text
from sinkscope.results.claims import STATEMENTS, judge_claims, verdicts_of
from sinkscope.results.rows import Claim, Curve, Dynamics, Heads, Interval
from sinkscope.study.run import Run

SOLVED: dict[str, Any] = {"accuracy": 0.9, "task": "arithmetic"}
CONTRACT = ("name", "claim", "paper_model", "model", "verdict", "estimate", "low", "high", "unit", "n", "dose", "control",
            "because")  # fmt: skip
STRONG = {"rule": "head_share", "group": "all", "epsilon": 0.3}


def judge(**rows: list[Any]) -> dict[str, Claim]:
    """Every claim of the rows, by its name."""
    claims = judge_claims(tables(pooled=rows.get("cells", []), **rows), 0.05)  # pooled rows tell the points of a sweep
    for row in claims:
        assert row.because.endswith(".") and row.name in STATEMENTS and row.low <= row.estimate <= row.high
        assert ("No test: " in row.because) == (row.verdict == "no test") and len(text.write_figure(row)) <= 60
        assert (row.p is None) == (row.verdict == "no test") and (row.p is None or row.p <= (row.p_holm or 0) <= 1)
    return {row.name: row for row in reversed(claims)}


@pytest.mark.parametrize(
    ("lost", "n", "verdict"),
    [(0, 400, "supports"), (100, 400, "contradicts"), (15, 400, "undecided"), (0, 20, "undecided")],
)
def test_masking_sinks_of_a_diffusion_model(lost: int, n: int, verdict: str) -> None:
    """The whole interval lies above or below a loss of 5 points."""
    for words, name in (({"above": STRONG}, "strong_sink"), ({}, "one_sink")):
        row = judge(cells=[none(n=n, **SOLVED), cell(lost, n=n, **SOLVED, **words)])[name]
        assert row.verdict == verdict and row.unit == "points" and row.limit == -5.0
        assert (row.n, row.dose, row.estimate) == (n, 0.2, pytest.approx(-100 * lost / n))
        assert (row.needed is not None) == (verdict == "undecided")


def test_masking_is_no_test_without_attention_to_lose_and_without_right_answers() -> None:
    weak = judge(cells=[none(n=400, **SOLVED), cell(0, above=STRONG, n=400, mass=0.003, **SOLVED)])
    assert weak["strong_sink"].verdict == "no test"
    unsolved = judge(cells=[none(0.3, n=400, task="arithmetic"), cell(100, n=400, accuracy=0.1, task="arithmetic")])
    assert unsolved["one_sink"].verdict == "no test"


def test_a_verdict_does_not_depend_on_what_else_is_in_the_study() -> None:
    """The most-attended key is judged by its own dose, whatever strong sinks receive; more rows change no other row."""
    plain, top = none(n=400, **SOLVED), cell(200, n=400, **SOLVED)
    others = [
        cell(0, above=STRONG, n=400, mass=0.003, **SOLVED),
        cell(3, "mask_random", match="count", n=400, **SOLVED),
        cell(150, kinds="content", n=400, **SOLVED),
    ]
    alone = judge(cells=[plain, top])["one_sink"]
    for more in ([others[0]], others[1:], others):
        beside = judge(cells=[plain, *more, top], dynamics=[traced("m", with_sink=0.01)])["one_sink"]
        assert replace(beside, control=None, p_holm=None) == replace(alone, control=None, p_holm=None)


def test_p_is_corrected_over_all_claims_of_a_run() -> None:
    rows = [none(n=400, **SOLVED), cell(32, n=400, **SOLVED), cell(33, above=STRONG, n=400, **SOLVED)]
    one, both = judge(cells=rows[:2])["one_sink"], judge(cells=rows)["one_sink"]
    assert one.p == both.p and one.p_holm is not None and both.p_holm is not None and both.p_holm >= one.p_holm


def test_the_control_of_a_masked_sink_is_random_keys_of_its_mass() -> None:
    rows = [none(n=400, **SOLVED), cell(100, n=400, **SOLVED)]
    assert judge(cells=rows)["one_sink"].control is None
    count = cell(8, "mask_random", match="count", n=400, **SOLVED)
    mass = cell(40, "mask_random", match="mass", n=400, mass=0.15, **SOLVED)
    for more, estimate, dose in (([count], -2.0, 0.2), ([count, mass], -10.0, 0.15)):
        control = judge(cells=[*rows, *more])["one_sink"].control
        assert control is not None and (control.estimate, control.dose) == (pytest.approx(estimate), dose)


def test_likelihood_cannot_show_that_masking_is_harmless() -> None:
    """It can show that masking is fatal; short of that, accuracy falls long before it does."""
    for nats in (0.0, -0.05, -2.0):
        assert judge(likelihood=[scored(nats)])["one_sink"].verdict == "no test"
    for nats, verdict in ((-2.0, "supports"), (-0.1, "no test"), (-0.69, "no test")):
        assert judge(likelihood=[scored(nats, causal=True)])["arm_sink"].verdict == verdict


@pytest.mark.parametrize(("lost", "verdict"), [(150, "supports"), (20, "contradicts"), (80, "undecided")])
def test_the_sink_of_an_autoregressive_model_is_vital_where_half_is_lost(lost: int, verdict: str) -> None:
    words: dict[str, Any] = {"causal": True, "accuracy": 0.8, "n": 200, "task": "arithmetic"}
    ways = [
        cell(lost, above=STRONG, **words), cell(lost, rows="last", **words), cell(lost, **words),
        cell(lost, "mask_positions", k=0, rows=None, positions=[0], since="second", **words),
    ]  # fmt: skip
    for one in ways:
        claims = judge(cells=[none(**words), one])
        assert claims["arm_sink"].verdict == verdict and not {"one_sink", "strong_sink"} & set(claims)


def test_conditions_and_models_have_rows_of_their_own() -> None:
    words: dict[str, Any] = {"causal": True, "accuracy": 0.8, "n": 200, "task": "arithmetic"}
    rows = [none(**words), replace(cell(150, rows="last", **words), label="by last"), cell(150, **words)]
    claims = judge_claims(tables(cells=rows, pooled=rows, dynamics=[traced("tiny-mmada"), traced("tiny-sdar")]), 0.05)
    keys = [(row.name, row.model, row.condition, row.definition) for row in claims]
    assert len({*keys}) == len(keys) and sum(row.name == "arm_sink" for row in claims) == 2
    assert {row.model: row.paper_model for row in claims} == {"tiny-mmada": "MMaDA-8B", "tiny-sdar": None, "m": None}


def traced(model: str, arm: bool = False, width: float = 0.05, generations: int = 30, **values: float) -> Dynamics:
    means = {"with_sink": 0.9, "static": 0.2, "key_0": 0.1, "structural": 0.8, "structural_base": 0.4, "deep_sinks": -1.0,
             "deep_strength": 1.0, **values}  # fmt: skip
    intervals: dict[str, Interval] = {name: around(value, width) for name, value in means.items()}
    columns = Heads(**heads(static=means["static"], moving=1 - means["static"])) if arm else None
    row = dynamics(model=model, intervals=intervals, columns=columns)
    return replace(row, generations=generations, headers=0)


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
        assert judge(dynamics=[traced("d", **{value: share})])[name].verdict == verdict
        assert judge(dynamics=[traced("d", generations=19, **{value: share})])[name].verdict == "no test"
    if name != "sinks_exist":
        assert judge(dynamics=[traced("d", with_sink=0.01)])[name].verdict == "no test"


def test_a_claim_that_depends_on_the_definition_of_a_sink_has_a_verdict_per_definition() -> None:
    rows = [traced("d", static=0.9), replace(traced("d", static=0.2), rule="head_share", unit=None, epsilon=0.3)]
    claims = [row for row in judge_claims(tables(dynamics=rows), 0.05) if row.name == "sinks_move"]
    assert [(row.definition, row.verdict) for row in claims] == [
        ("threshold 3 (uniform)", "contradicts"), ("head_share 0.3", "supports"),
    ]  # fmt: skip


def test_structure_needs_several_chat_headers_or_none() -> None:
    for headers, verdict in ((0, "supports"), (1, "no test"), (3, "no test"), (4, "supports"), (None, "no test")):
        assert judge(dynamics=[replace(traced("d"), headers=headers)])["structural"].verdict == verdict


def test_a_claim_that_sinks_move_says_how_many_change_place() -> None:
    """A sink that only vanishes and comes back moves nowhere, though it is not there at every step."""
    row = judge(dynamics=[traced("d", static=0.2, relocating=0.11)])["sinks_move"]
    assert row.because.endswith("The main sink changes place in 11 % of them.") and row.estimate == 20


def test_sinks_stay_where_the_paper_says_so() -> None:
    """LLaDA's move and Dream's shift; MMaDA's stay, and so do an autoregressive model's."""
    for model, name in (("tiny-llada", "sinks_move"), ("tiny-dream", "sinks_move"), ("tiny-mmada", "sinks_stand")):
        for static in (0.1, 0.9):
            row = judge(dynamics=[traced(model, static=static)])[name]
            assert row.verdict == ("supports" if (static > 0.5) == (name == "sinks_stand") else "contradicts")
    for key_0, verdict in ((0.6, "supports"), (0.1, "contradicts"), (0.3, "undecided")):
        arm = judge(dynamics=[traced("a", arm=True, static=0.9, key_0=key_0)])
        assert arm["sink_at_start"].verdict == verdict and arm["sinks_stand"].verdict == "supports"


def test_the_threshold_is_judged_in_each_unit_that_fits_the_paper() -> None:
    shares = {"sum": 0.98, "percent": 0.9, "uniform": 0.5}
    curves = [Curve("d", "", "none", unit, 3.0, share, share - 0.01, share + 0.01) for unit, share in shares.items()]
    claims = judge(dynamics=[traced("d")], curves=curves)
    assert claims["threshold_sum"].verdict == "supports" and claims["threshold_percent"].verdict == "contradicts"
    near = [replace(row, low=row.non_sinks - 0.05) for row in curves[:1]]
    assert judge(dynamics=[traced("d")], curves=near)["threshold_sum"].verdict == "undecided"


def test_confidence_and_delay_are_two_claims() -> None:
    late = {f"free_delay_{name}": around(0.5) for name in ("sinks_gap", "gap_beyond_random")}
    claims = judge(mechanism=[mechanism(0.5, 0.5, problems=40, free_problems=20, **late)], dynamics=[traced("m")])
    assert claims["confidence"].verdict == claims["later"].verdict == "supports"
    claims = judge(mechanism=[mechanism(-0.5, -0.5, problems=40, free_problems=3, **late)], dynamics=[traced("m")])
    assert claims["confidence"].verdict == "contradicts" and claims["later"].verdict == "no test"
    for problems, verdict in ((40, "undecided"), (5, "no test")):
        claims = judge(mechanism=[mechanism(0.0, 0.0, problems=problems)], dynamics=[traced("m")])
        assert claims["confidence"].verdict == verdict and "later" not in claims


def test_verdicts_are_right_where_the_truth_is_planted() -> None:
    """At the size of committed runs: right in 90 %, and the opposite in no more than 2.5 %."""
    tested = [world for world in worlds() if world.n in (20, 200) and "limit" not in world.truth]
    tested = [world for world in tested if (world.n == 200) == (world.claim in ("strong_sink", "one_sink", "arm_sink"))]
    assert {world.right for world in tested} == {"supports", "contradicts", "no test"} and len(tested) > 15
    for number, world in enumerate(tested):
        if world.truth == "true: 1 point":  # which 200 problems cannot tell from 5 points often enough
            continue
        rng = np.random.default_rng([3, number])
        count = Counter(world.judge(rng) for _ in range(40))
        assert count[world.right] >= 36, (world, count)
        assert sum(count[one] for one in ("supports", "contradicts") if one != world.right) <= 1, (world, count)


def test_verdicts_are_the_claims_in_short() -> None:
    claims = judge_claims(tables(dynamics=[traced("a"), traced("b")]), 0.05)
    short = verdicts_of(claims)
    assert {(row.model, row.name) for row in short} == {(row.model, row.name) for row in claims}


@pytest.mark.parametrize("path", list(committed_runs()), ids=lambda path: path.parent.name)
def test_committed_runs_open_and_are_judged_by_the_rules_of_today(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "activation", lambda: ". .venv/bin/activate && ")
    loaded = Run.load(path)
    values = json.loads(path.read_text(encoding="utf-8"))
    assert rejudge(values) == loaded.rows, "run python -m lab.rejudge"
    rows = loaded.rows.claims
    assert len({(row.name, row.model, row.condition, row.definition) for row in rows}) == len(rows)
    assert all({*CONTRACT} <= {*row.to_dict()} for row in rows)
    lines = summaries.write_summary(loaded.rows, Path("runs/x"), 60.0).splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 80
    full = loaded.summary(full=True)
    assert max(map(len, full.splitlines())) <= 80 and all(row.claim[:-1] in " ".join(full.split()) for row in rows)


def test_the_matrix_as_text_has_every_cell() -> None:
    rows = Run.load(ROOT / "results" / "pair" / "pair").rows.claims
    printed = list(text.matrix_lines(rows))[3:]
    marks = [mark for line in printed for mark in line[text.NAME_WIDTH :].split()]
    cells = text.cells_of(rows)
    models = list(dict.fromkeys(row.model for row in rows))
    wanted = [cells[name, model] for name in text.SHORT for model in models if (name, model) in cells]
    assert marks == [text.MARKS[row.verdict] for row in wanted]


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
        names = text.column_heads(models, room)
        assert len({*names}) == len(models) and all(len(part) <= room for head in names for part in head)
