"""Study files: what is written comes back, and every wrong field is told in one sentence with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sinkscope.errors import StudyError
from sinkscope.study.plan import STUDIES, Study, shipped
from sinkscope.study.units import Facts, units_of

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


def facts(study: Study, causal: bool) -> Facts:
    settings = {label: {"length": 8, "steps": 8, "label": label} for label, _ in study.settings()}
    return Facts("a", "a", causal, "llama" if causal else "llada", {}, settings)


@pytest.mark.parametrize("name", shipped())
def test_shipped_studies_come_back_from_what_they_are_written_as(name: str) -> None:
    study = Study.load(name)
    assert study.name == name and study.about
    assert Study.from_dict(yaml.safe_load(study.to_yaml())) == study
    assert Study.load(f"{name}.yaml") == Study.load(STUDIES / f"{name}.yaml") == study
    units = units_of(study, [facts(study, False), Facts("b", "b", True, "llama", {}, {"": {"length": 8}})])
    assert len({unit.id for unit in units}) == len(units)


def test_nine_studies_are_shipped() -> None:
    assert set(shipped()) == {"paper", "quick", "blocks", "windows", "steps", "battery", "values", "thresholds", "cut"}


def test_the_papers_study_has_every_condition() -> None:
    study = Study.load("paper")
    found = {(c.name, c.k, c.rank, c.rows, c.match) for c, models in study.conditions if models != "causal"}
    for k in (1, 5, 10):
        assert {("mask_sinks", k, "clean", "all", None), ("mask_sinks", k, "as_run", "all", None)} <= found
        assert {("mask_random", k, "clean", "all", "count"), ("mask_random", k, "clean", "all", "mass")} <= found
    assert [c.name for c, _ in study.conditions[:2]] == ["none", "noop"]
    causal = {(c.name, c.k, c.rows, c.since) for c, models in study.conditions if models == "causal"}
    assert {("mask_sinks", 1, "last", None), ("mask_positions", 0, None, "first")} <= causal


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [
        ("name: mine", "name: 7", 1, "name"),
        ("name: mine", "nme: mine", None, "name"),
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
        ("k: 1", "k: 0", 7, "conditions[1].k"),
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
        ("{name: mask_sinks, k: 1}", "{name: cut, start: 0.5, stop: 0.2}", 7, "conditions[1].stop"),
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
        ("conditions: [none]", "conditions: [noop]", 14, "likelihood.conditions"),
        ("conditions: [none]", "conditions: [none]\n  texts: 1", 15, "likelihood.texts"),
        ("rule: threshold", "rule: feeling", 16, "rules[0]"),
        ("epsilon: 3", "epsilon: -3", 16, "rules[0]"),
        ("unit: sum", "colour: red", 16, "rules[0]"),
        ("rules:\n", "seed: -1\nrules:\n", 15, "seed"),
        ("rules:\n", "split: exam\nrules:\n", 15, "split"),
        ("rules:\n", "chunk: 0\nrules:\n", 15, "chunk"),
        ("rules:\n", "draws: 3\nrules:\n", 15, "draws"),
        ("rules:\n", "dtype: 16\nrules:\n", 15, "dtype"),
        ("rules:\n", "decode: {speed: 3}\nrules:\n", 15, "decode.speed"),
        ("rules:\n", "decode: {steps: []}\nrules:\n", 15, "decode.steps"),
        ("rules:\n", "decode: fast\nrules:\n", 15, "decode"),
        ("rules:\n", "about: [1]\nrules:\n", 15, "about"),
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
    assert said.startswith("mine.yaml") and "\n" not in said and said.endswith(".")
    assert field in said
    if line is not None:
        assert f"line {line}:" in said


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


def test_changed_keeps_what_is_not_named() -> None:
    study = Study.load("paper")
    other = study.changed(models=["a/b"], problems=7, tasks=["recall", "programs"], seed=3)
    assert (other.models, other.seed, other.conditions) == (("a/b",), 3, study.conditions)
    assert [(task.name, task.problems) for task in other.tasks] == [("recall", 7), ("programs", 7)]
    assert not other.likelihood.models
    wrong: dict[str, Any] = {"tasks": ["cooking"]}
    with pytest.raises(StudyError, match="cooking"):
        study.changed(**wrong)
