"""One vocabulary of conditions: an intervention from outside is named, controlled, judged and charted like our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from made_rows import dynamics, tables
from sinkscope.study.analysis.verdicts import verdicts

import sinkscope.interventions as ours
from sinkscope.attention.calls import Call, Change
from sinkscope.fields import number
from sinkscope.interventions import settings
from sinkscope.interventions.base import Intervention
from sinkscope.interventions.conditions import Condition
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.settings import OF, K, Setting, of_random, register
from sinkscope.report.overview import overview
from sinkscope.results.accuracy import AnswerSet, cells, pooled, pooled_cells
from sinkscope.results.rows import Results, RunFacts
from sinkscope.results.summary import summary
from sinkscope.study import vocabulary
from sinkscope.study.schema import Study
from sinkscope.study.units import ModelInfo

FACTOR = Setting("factor", 0.5, number(0, 1), "a share", label=lambda factor: f"factor {factor:g}")
MODEL = ModelInfo("m", "m", False, "llada", {}, {})


@pytest.fixture
def fade() -> Iterator[None]:
    """An intervention of a package that is not ours: it names its controls and its aim, and no short name."""

    @register("fade", K, FACTOR, OF, controls=of_random, aim="weaken")
    @dataclass(frozen=True)
    class Fade(Intervention):
        k: int = 1
        factor: float = 0.5
        of: str = "sinks"
        seed: int = field(default=0)

        @property
        def is_noop(self) -> bool:
            return self.k == 0

        def change(self, call: Call, memory: Memory) -> Change | None:
            return None

    yield
    del settings.INTERVENTIONS._things["fade"]


def results(*right: tuple[Condition, int]) -> Results:
    """A run of one model: so many of 100 answers are right under each condition."""
    answers = {}
    for condition, count in right:
        rows = [{"problem": i, "correct": i < count, "confidence": 0.5} for i in range(100)]
        chunk = {"rows": rows, "effect": {"mass": 1.0, "mass_seen": 10.0}}
        answers["m", "", "arithmetic", condition] = AnswerSet({"arithmetic": [chunk]})
    study = Study.load("quick")
    traced = [dynamics(moving=0.4, absorption=0.4)] + [
        dynamics(condition=one.label, moving=0.4, absorption=0.1) for one, _ in right[1:]
    ]
    made = tables(
        cells=cells(study, [MODEL], answers), pooled=pooled_cells(study, [MODEL], pooled(answers)),
        dynamics=traced,
    )  # fmt: skip
    about = RunFacts("s", 0, [{"name": "m", "family": "llada"}], {}, "reference", "", 1, len(right), 5.0)
    return Results(**vars(made), verdicts=verdicts(made), run=about, claims=[])


def fading(of: str = "sinks", k: int = 1) -> Condition:
    return Condition("fade", k, factor=0.25, of=of)


@pytest.mark.usefixtures("fade")
def test_an_intervention_from_outside_is_treated_like_our_own() -> None:
    found = results((Condition("none"), 90), (fading(), 40), (fading("random"), 88))
    by_label = {cell.label: cell for cell in found.cells}
    assert set(by_label) == {"none", "fade K=1 sinks factor 0.25", "fade K=1 random factor 0.25"}
    sinks = by_label["fade K=1 sinks factor 0.25"]
    assert sinks.controls["count"].accuracy == 0.88 and sinks.controls["count"].difference == pytest.approx(-0.48)
    assert by_label["fade K=1 random factor 0.25"].controls == {}
    judged = {row.name: row for row in found.verdicts}
    assert judged["weaker"].value == "undecided" and sinks.label in judged["weaker"].because
    text = summary(found)
    assert "fade K=1 sinks factor 0.25" in text and "40 [" in text and "88 [" in text
    shown = overview(found)
    roles = {cell["label"]: cell["role"] for cell in shown["cells"] if cell["task"] == "all"}
    assert roles == {
        "none": None,
        sinks.label: "fade sinks factor 0.25",
        "fade K=1 random factor 0.25": "fade random factor 0.25",
    }
    assert {role for role in roles.values() if role} <= set(shown["roles"])


@pytest.mark.usefixtures("fade")
def test_a_condition_that_says_more_than_a_short_name_keeps_its_label() -> None:
    conditions = {one.label: one.to_dict() for one in (fading(), fading("random"))}
    assert vocabulary.short_names(conditions, causal=False) == {label: label for label in conditions}


def test_what_is_registered_is_what_is_known() -> None:
    """Who has controls and an aim: the lists that analysis used to keep, now said by the interventions themselves."""
    known = {name: ours.settings.INTERVENTIONS[name] for name in ours.settings.INTERVENTIONS}
    assert {name for name, one in known.items() if one.controls} == {
        "mask_sinks", "zero_values", "mean_values", "patch_values", "patch_keys", "steer", "ablate_channels",
        "zero_attention",
    }  # fmt: skip
    assert {name: one.aim for name, one in known.items() if one.aim} == {
        "soften": "weaken", "penalise_sinks": "weaken", "off_by_one": "weaken", "add_sink_token": "weaken",
        "hold_sinks": "hold",
    }  # fmt: skip


TOP = {"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all"}


@pytest.mark.parametrize(
    ("condition", "key"),
    [
        (TOP, ("top key", None)),
        ({**TOP, "rows": "last"}, ("last row's top key", None)),
        ({**TOP, "kinds": "content", "above": None}, ("content key", None)),
        ({**TOP, "above": {"rule": "head_share", "epsilon": 0.3}}, ("strong sink", None)),
        ({**TOP, "above": {"rule": "zscore", "k": 3}}, None),
        ({**TOP, "k": 5}, None),
        ({**TOP, "keep_self": True}, None),
        ({**TOP, "name": "mask_random", "match": "mass", "kinds": "structural"}, ("structural key", "mass")),
        ({"name": "mask_positions", "k": 0, "rank": None, "rows": None, "positions": [0], "since": "second"}, ("position 0", None)),
        ({"name": "mask_positions", "positions": [0], "since": "first"}, None),
        ({"name": "none", "k": 0, "rank": None, "rows": None}, None),
    ],
)  # fmt: skip
def test_which_key_a_condition_masks(condition: Mapping[str, Any], key: vocabulary.Key | None) -> None:
    assert vocabulary.masked_key(condition) == key
