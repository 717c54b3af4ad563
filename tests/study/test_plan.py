"""Study files: what is written comes back, and every wrong field is told in one sentence with its line."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from made_conditions import make_condition
from sinkscope.decoding.settings import setting_names
from sinkscope.errors import StudyError
from sinkscope.study.schema import STUDIES, Study, TaskPlan, shipped
from sinkscope.study.units import ModelInfo, Unit, units_of

GOOD = """name: mine
models: [tiny-llada]
tasks:
  - {name: arithmetic, problems: 4}
conditions:
  - none
  - {name: mask_sinks, k: 1}
trace:
  problems: 1
mechanism:
  problems: 1
likelihood:
  models: [tiny-llama]
  conditions: [none]
rules:
  - {rule: threshold, epsilon: 3, unit: sum}
"""


def facts(study: Study, causal: bool) -> ModelInfo:
    settings = {label: {"length": 8, "steps": 8, "label": label} for label, _ in study.settings()}
    return ModelInfo("a", "a", causal, "llama" if causal else "llada", {}, settings)


@pytest.mark.parametrize("name", shipped())
def test_shipped_studies_come_back_from_what_they_are_written_as(name: str) -> None:
    study = Study.load(name)
    assert study.name == name and study.about
    assert Study.from_dict(yaml.safe_load(study.to_yaml())) == study
    assert Study.load(f"{name}.yaml") == Study.load(STUDIES / f"{name}.yaml") == study
    units = units_of(study, [facts(study, False), ModelInfo("b", "b", True, "llama", {}, {"": {"length": 8}})])
    assert len({unit.id for unit in units}) == len(units)


def test_these_studies_are_shipped() -> None:
    assert set(shipped()) >= {"paper", "quick", "blocks", "windows", "steps", "battery", "values", "thresholds", "cut"}


def test_the_study_of_the_tiny_family_has_every_condition() -> None:
    study = Study.load("tiny")
    found = {
        (c.name, c.k, c.get("rank"), c.get("rows"), c.get("match")) for c in study.conditions if c.models != "causal"
    }
    for k in (1, 5, 10):
        assert {("mask_sinks", k, "clean", "all", None), ("mask_sinks", k, "as_run", "all", None)} <= found
        assert {("mask_random", k, "clean", "all", "count"), ("mask_random", k, "clean", "all", "mass")} <= found
    assert [c.name for c in study.conditions[:2]] == ["none", "noop"]
    causal = {(c.name, c.k, c.get("rows"), c.get("since")) for c in study.conditions if c.models == "causal"}
    assert {("mask_sinks", 1, "last", None), ("mask_positions", 0, None, "first")} <= causal


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [
        ("name: mine", "name: 7", 1, "name"),
        ("name: mine", "nme: mine", None, "name"),
        ("name: mine", "name: ''", 1, "name"),
        ("name: mine", "name: a/b", 1, "name"),
        ("name: mine", "name: ..", 1, "name"),
        ("[tiny-llada]", "tiny-llada", 2, "models"),
        ("[tiny-llada]", "[a, a]", 2, "models"),
        ("[tiny-llada]", "[a, 3]", 2, "models"),
        ("name: arithmetic", "name: cooking", 4, "tasks[0].name"),
        ("problems: 4", "problems: many", 4, "tasks[0].problems"),
        ("problems: 4", "problems: 0", 4, "tasks[0].problems"),
        ("problems: 4", "problems: 4, level: 3", 4, "tasks[0].level"),
        ("problems: 4", "problems: 4, difficulty: 9", 4, "tasks[0].difficulty"),
        ("{name: arithmetic, problems: 4}", "arithmetic", 4, "tasks[0]"),
        ("  - none", "  - noop", 6, "conditions"),
        ("name: mask_sinks", "name: mask_everything", 7, "conditions[1].name"),
        ("k: 1", "k: -1", 7, "conditions[1].k"),
        ("k: 1", "k: [1, two]", 7, "conditions[1].k"),
        ("k: 1", "k: []", 7, "conditions[1].k"),
        ("k: 1", "k: [1, 1]", 6, "conditions"),
        ("k: 1", "rank: clean", 7, "conditions[1]"),
        ("k: 1", "k: 1, rank: dirty", 7, "conditions[1].rank"),
        ("k: 1", "k: 1, rows: some", 7, "conditions[1].rows"),
        ("k: 1", "k: 1, match: count", 7, "conditions[1].match"),
        ("k: 1", "k: 1, keep_self: perhaps", 7, "conditions[1].keep_self"),
        ("k: 1", "k: 1, for: big", 7, "conditions[1].for"),
        ("k: 1", "k: 1, above: {rule: guess}", 7, "conditions[1].above"),
        ("{name: mask_sinks, k: 1}", "{name: mask_positions, positions: 0}", 7, "conditions[1].positions"),
        ("{name: mask_sinks, k: 1}", "{name: mask_positions, positions: [0], since: ever}", 7, "conditions[1].since"),
        ("{name: mask_sinks, k: 1}", "{name: window, radius: -1}", 7, "conditions[1].radius"),
        ("{name: mask_sinks, k: 1}", "{name: cut, start: 0.5, stop: 0.2}", 7, "conditions[1]"),
        ("{name: mask_sinks, k: 1}", "{name: cut, start: 0.5, stop: 2}", 7, "conditions[1].stop"),
        ("{name: mask_sinks, k: 1}", "{name: zero_values, k: 1, of: air}", 7, "conditions[1].of"),
        ("trace:\n  problems: 1", "trace:\n  problems: -1", 9, "trace.problems"),
        ("trace:\n  problems: 1", "trace:\n  keep: 1", 9, "trace"),
        ("trace:\n  problems: 1", "trace:\n  problems: 1\n  keep: x", 10, "trace.keep"),
        ("trace:\n  problems: 1", "trace:\n  problems: 1\n  epsilons: [x]", 10, "trace.epsilons"),
        ("trace:\n  problems: 1", "trace:\n  problems: 1\n  conditions: [window]", 9, "trace"),
        ("trace:\n  problems: 1", "trace: 5", 8, "trace"),
        ("mechanism:\n  problems: 1", "mechanism:\n  problems: 1\n  k: [0]", 12, "mechanism.k"),
        ("models: [tiny-llama]", "models: 3", 13, "likelihood.models"),
        ("models: [tiny-llama]", "models: [a, a]", 13, "likelihood.models"),
        ("models: [tiny-llama]", "models: [tiny-llada]", 2, "models"),
        ("conditions: [none]", "conditions: [noop]", 13, "likelihood"),
        ("conditions: [none]", "conditions: [none]\n  texts: 1", 15, "likelihood.texts"),
        ("rule: threshold", "rule: feeling", 16, "rules[0]"),
        ("epsilon: 3", "epsilon: -3", 16, "rules[0]"),
        ("unit: sum", "colour: red", 16, "rules[0]"),
        ("rules:\n", "split: exam\nrules:\n", 15, "split"),
        ("rules:\n", "dtype: 16\nrules:\n", 15, "dtype"),
        ("rules:\n", "decode: {steps: []}\nrules:\n", 15, "decode.steps"),
        ("rules:\n", "decode: fast\nrules:\n", 15, "decode"),
        ("rules:\n", "decode: {length: -1}\nrules:\n", 15, "decode.length"),
        ("rules:\n", "decode: {length: [8, eight]}\nrules:\n", 15, "decode.length"),
        ("rules:\n", "decode:\n  length: 8\n  temperature: hot\nrules:\n", 17, "decode.temperature"),
        ("rules:\n", "decode: {threshold: [0.5, 1.5]}\nrules:\n", 15, "decode.threshold"),
        ("rules:\n", "decode: {epsilon: 1e-3}\nrules:\n", 15, "decode.epsilon"),  # YAML wants 1.0e-3
        ("rules:\n", "decode: {cache: big}\nrules:\n", 15, "decode.cache"),
        ("rules:\n", "decode: {family: dream}\nrules:\n", 15, "decode.family"),
        ("rules:\n", "decode: {noise: reference}\nrules:\n", 15, "decode.noise"),
        ("rules:\n", "device: x\nrules:\n", 15, "device"),
        ("rules:\n", "colour: red\nrules:\n", 15, "colour"),
        ("rules:\n", "name: again\nrules:\n", 15, "name"),
        ("rules:\n", "seed: [\nrules:\n", None, ""),
    ],
)  # fmt: skip
def test_every_field_wrong_in_turn(tmp_path: Path, old: str, new: str, line: int | None, field: str) -> None:
    assert old in GOOD
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(StudyError) as caught:
        Study.load(path)
    said = str(caught.value)
    assert said.startswith("mine.yaml") and "\n" not in said and said.endswith((".", "?"))
    assert field in said
    if line is not None:
        assert f"line {line}:" in said


@pytest.mark.parametrize("models", ["&a [*a]", "[" * 3000 + "]" * 3000], ids=["in itself", "deep"])
def test_a_value_without_end_is_told(tmp_path: Path, models: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("[tiny-llada]", models))
    with pytest.raises(StudyError, match=r"nested too deep|too many values"):
        Study.load(path)


BOMB = "about: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"x{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "x0: &a0 {k0: 1}\n" + "".join(
    f"x{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}], k{n}: 1}}\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "too many values"),
        (MERGES, "too many values"),
        (GOOD.replace("name: mine", "name: &n mine").replace("[tiny-llada]", f"[{'*n, ' * 150_000}x]"), "values"),
        (GOOD + "about: " + "x" * (50 << 20), "more than 1 MB"),
        (GOOD.replace("k: 1", f"k: [{', '.join(map(str, range(1, 110_000)))}]"), "values"),
        (GOOD.replace("k: 1", f"k: [{', '.join(map(str, range(1, 2_000)))}]"), "no more than 1,000"),
        (GOOD.replace("[tiny-llada]", f"[{', '.join(f'm{n}' for n in range(2_000))}]"), "models must have at most"),
        (GOOD.replace("problems: 4", f"problems: {'9' * 5_000}"), "is damaged"),
        (GOOD.replace("problems: 4", "problems: 99999999999"), "tasks[0].problems must be"),
        (GOOD + "decode: {" + ", ".join(f"{w}: [{', '.join(map(str, range(1, 90)))}]" for w in ("length", "seed")) + "}\n",
         "makes 7,921"),
        (GOOD + "trace: {problems: 1, epsilons: [" + "1, " * 2_000 + "1]}\n", "duplicate key"),
        (GOOD.replace("  problems: 1\nmech", "  problems: 1\n  epsilons: [" + "1, " * 2_000 + "1]\nmech"), "trace.epsilons"),
        ("? [a, b]\n: c\n", "plain word"),
        ("[" * 500_000, "too deep"),
    ],
    ids=range(14),
)  # fmt: skip
def test_what_would_never_end_is_told_at_once(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(StudyError) as caught:
        Study.load(path)
    assert time.process_time() - began < 5
    said = str(caught.value)
    assert told in said and len(said) < 1_000 and "\n" not in said


def test_mistakes_of_the_constructor_are_told_as_those_of_a_file() -> None:
    with pytest.raises(StudyError, match=r"TaskPlan: problems must be greater than or equal to 1, got 0\."):
        TaskPlan("recall", problems=0)
    study = Study.load("quick")
    with pytest.raises(StudyError, match="chunk must be greater"):
        replace(study, chunk=0)
    with pytest.raises(StudyError, match="must have none among"):
        replace(study, conditions=study.conditions[1:])


def test_the_good_file_is_good(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert Study.load(path).tasks[0].problems == 4


@pytest.mark.parametrize("name", ["papre", "nowhere.yaml", ""])
def test_unknown_names_are_told_what_there_is(name: str) -> None:
    with pytest.raises(StudyError, match="paper"):
        Study.load(name)


def test_a_sweep_makes_every_combination() -> None:
    study = Study.from_dict({**yaml.safe_load(GOOD), "decode": {"length": 24, "block": [None, 8], "steps": [24, 12]}})
    labels = [label for label, _ in study.settings()]
    assert labels == ["block=whole, steps=24", "block=whole, steps=12", "block=8, steps=24", "block=8, steps=12"]
    assert study.settings()[1][1] == {"length": 24, "block": None, "steps": 12}


def test_every_decode_setting_can_be_given_and_swept() -> None:
    swept = {
        "length": [8, 16], "block": [None, 4], "temperature": [0, 0.5], "top_p": [None, 0.9], "guidance": 0.0,
        "commit": "factor", "factor": 1.5, "cache": [None, "dual"], "seed": 4, "algorithm": ["origin", "entropy"],
        "rule": "static", "gamma": None,
    }  # fmt: skip
    study = Study.from_dict({**yaml.safe_load(GOOD), "decode": swept})
    assert len(study.settings()) == 2**6 and Study.from_dict(study.to_dict()) == study
    for name in setting_names(lists=False) - {"noise", "mode"}:
        with pytest.raises(StudyError, match=name):
            Study.from_dict({**yaml.safe_load(GOOD), "decode": {name: {"a": 1}}})


def test_the_mechanism_looks_at_the_first_point_of_a_sweep_only() -> None:
    values = {**yaml.safe_load(GOOD), "decode": {"length": 8, "steps": [4, 1]}}
    assert Study.from_dict(values).mechanism.problems == 1
    assert Study.from_dict({**values, "decode": {"steps": 1}, "mechanism": {"problems": 0}}).decode == {"steps": 1}


def test_a_model_that_takes_one_step_of_its_own_is_refused_for_the_mechanism() -> None:
    study = Study.from_dict(yaml.safe_load(GOOD))
    with pytest.raises(StudyError, match="at least 2 steps, and a decodes in 1"):
        units_of(study, [ModelInfo("a", "a", False, "llada", {}, {"": {"length": 1, "steps": 1}})])


def test_a_long_name_of_a_unit_is_cut_and_stays_its_own() -> None:
    units = [
        Unit("answers", "m", make_condition("mask_positions", positions=(*range(120), last)), shown="m", task="recall")
        for last in (120, 121)
    ]
    assert len({unit.id for unit in units}) == 2
    for unit in units:
        assert len(unit.id.encode()) <= 150 and unit.id.startswith("answers__m__mask_positions-")
    assert len(replace(units[0], shown="模" * 100).id.encode()) <= 150


def test_changed_moves_a_model_that_is_measured_by_likelihood() -> None:
    study = Study.load("tiny")
    likely = study.likelihood.models[0]
    other = study.changed(models=["tiny-llada", likely])
    assert (other.models, other.likelihood.models) == (("tiny-llada",), (likely,))
    assert study.changed(models=[likely]).models == ()
    with pytest.raises(StudyError, match="at least one model"):
        study.changed(models=[])


def test_changed_keeps_what_is_not_named() -> None:
    study = Study.load("paper")
    other = study.changed(models=["a/b"], problems=7, tasks=["recall", "programs"], seed=3)
    assert (other.models, other.seed, other.conditions) == (("a/b",), 3, study.conditions)
    assert [(task.name, task.problems) for task in other.tasks] == [("recall", 7), ("programs", 7)]
    assert not other.likelihood.models
    wrong: dict[str, Any] = {"tasks": ["cooking"]}
    with pytest.raises(StudyError, match="cooking"):
        study.changed(**wrong)
