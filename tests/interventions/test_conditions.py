"""Conditions: every registered intervention from a study file to a label, to plain data and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sinkscope as sk
from sinkscope.errors import InterventionError, StudyError
from sinkscope.fields import whole
from sinkscope.interventions import Condition, condition_from_dict
from sinkscope.interventions.conditions import names, read_entry
from sinkscope.interventions.settings import INTERVENTIONS, Setting, SettingError, register
from sinkscope.study.schema import Study

# What a study file says → label, file name and results. Run folders and results.json depend on every letter.
ENTRIES: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"name": "none"}, "none", {}),
    ({"name": "noop"}, "noop", {}),
    ({"name": "mask_sinks", "k": 5}, "mask sinks K=5 clean by all rows", {"k": 5, "rank": "clean", "rows": "all"}),
    (
        {"name": "mask_sinks", "k": 1, "rank": "as_run", "rows": "last", "keep_self": True},
        "mask sinks K=1 as_run by last row keep self",
        {"k": 1, "rank": "as_run", "rows": "last", "keep_self": True},
    ),
    (
        {"name": "mask_sinks", "k": 1, "above": {"rule": "head_share", "epsilon": 0.3}},
        "mask sinks K=1 clean by all rows above head_share,all,0.3",
        {"k": 1, "rank": "clean", "rows": "all", "above": {"rule": "head_share", "group": "all", "epsilon": 0.3}},
    ),
    (
        {"name": "mask_random", "k": 2, "match": "mass"},
        "mask random K=2 clean mass by all rows",
        {"k": 2, "rank": "clean", "rows": "all", "match": "mass"},
    ),
    ({"name": "mask_positions", "positions": [0, -1]}, "mask positions 0,-1", {"positions": [0, -1], "since": "first"}),
    (
        {"name": "mask_positions", "positions": [0], "since": "second"},
        "mask positions 0 since the second forward",
        {"positions": [0], "since": "second"},
    ),
    (
        {"name": "zero_values", "k": 1, "of": "random"},
        "zero values K=1 clean random by all rows",
        {"k": 1, "rank": "clean", "rows": "all", "of": "random"},
    ),
    (
        {"name": "mean_values", "k": 1},
        "mean values K=1 clean sinks by all rows",
        {"k": 1, "rank": "clean", "rows": "all", "of": "sinks"},
    ),
    ({"name": "delete_positions", "positions": [2]}, "delete positions 2", {"positions": [2]}),
    (
        {"name": "mask_instead", "k": 1, "positions": [1]},
        "mask instead K=1 clean 1 by all rows",
        {"k": 1, "rank": "clean", "rows": "all", "positions": [1]},
    ),
    (
        {"name": "mask_others", "k": 1, "kinds": "structural", "among": "prompt", "scope": "all", "persist": True},
        "mask others K=1 clean by all rows structural in the prompt persistent in all heads",
        {"k": 1, "rank": "clean", "rows": "all", "kinds": "structural", "among": "prompt", "scope": "all", "persist": True},
    ),
    (
        {"name": "attenuate", "by": 1, "of": "others", "matched": ["sinks", "others"]},
        "attenuate K=1 by 100% others row-matched with sinks+others",
        {"k": 1, "by": 1, "of": "others", "matched": ["sinks", "others"]},
    ),
    ({"name": "attenuate", "by": 0.25}, "attenuate K=1 by 25% sinks", {"k": 1, "by": 0.25, "of": "sinks"}),
    (
        {"name": "attenuate", "of": "random", "k": 4, "to": 0, "per": "model", "persist": True, "aligned": True},
        "attenuate K=4 to 0% random per model persistent aligned",
        {"k": 4, "to": 0, "of": "random", "per": "model", "persist": True, "aligned": True},
    ),
    (
        {"name": "cut", "start": 0, "stop": 0.5, "steps": [1, None]},
        "cut 0–0.5 steps 1–",
        {"start": 0, "stop": 0.5, "steps": [1, None]},
    ),
    ({"name": "window", "radius": 0}, "window radius 0", {"radius": 0}),
    ({"name": "cut", "start": 0, "stop": 0.5}, "cut 0–0.5", {"start": 0, "stop": 0.5}),
    (
        {"name": "mask_sinks", "k": 1, "kinds": "structural", "value_norm": "low", "per": "layer", "score": "per_row"},
        "mask sinks K=1 clean by all rows per row that sees it per layer structural low value norm",
        {"k": 1, "rank": "clean", "rows": "all", "kinds": "structural", "value_norm": "low", "per": "layer", "score": "per_row"},
    ),
    (
        {"name": "mask_random", "k": 1, "match": "mass", "kinds": ["newline", "end"]},
        "mask random K=1 clean mass by all rows newline+end",
        {"k": 1, "rank": "clean", "rows": "all", "match": "mass", "kinds": ["newline", "end"]},
    ),
    (
        {"name": "zero_values", "k": 1, "kinds": "content", "below": {"rule": "head_share", "epsilon": 0.3}},
        "zero values K=1 clean sinks by all rows content below head_share,all,0.3",
        {"k": 1, "rank": "clean", "rows": "all", "of": "sinks", "kinds": "content",
         "below": {"rule": "head_share", "group": "all", "epsilon": 0.3}},
    ),
    (
        {"name": "patch_values", "k": 1},
        "patch values K=1 clean from next by all rows",
        {"k": 1, "rank": "clean", "rows": "all", "source": "next"},
    ),
    (
        {"name": "patch_keys", "k": 2, "source": "previous"},
        "patch keys K=2 clean from previous by all rows",
        {"k": 2, "rank": "clean", "rows": "all", "source": "previous"},
    ),
    (
        {"name": "rotate_sinks", "k": 1},
        "rotate sinks K=1 clean by all rows",
        {"k": 1, "rank": "clean", "rows": "all"},
    ),
    (
        {"name": "penalise_sinks", "k": 1, "penalty": 2.5},
        "penalise sinks K=1 by 2.5 clean by all rows",
        {"k": 1, "rank": "clean", "rows": "all", "penalty": 2.5},
    ),
    (
        {"name": "hold_sinks", "k": 1, "bonus": 4},
        "hold sinks K=1 by 4 clean by all rows",
        {"k": 1, "rank": "clean", "rows": "all", "bonus": 4},
    ),
    ({"name": "soften", "temperature": 1.5}, "soften 1.5", {"temperature": 1.5}),
    ({"name": "off_by_one"}, "off by one 1", {"weight": 1.0}),
    ({"name": "add_sink_token", "token": 3}, "add sink token of token 3", {"token": 3}),
    ({"name": "steer", "vector": [1.0, 0.5], "strength": 2, "at": "masked", "layers": [1, 2]},
     "steer along 2 numbers by 2 at masked layers 1,2", {"vector": [1.0, 0.5], "strength": 2, "at": "masked", "layers": [1, 2]}),
    ({"name": "ablate_channels", "top": 2, "of": "random"}, "ablate channels top 2 random", {"top": 2, "of": "random"}),
    ({"name": "zero_attention", "heads": [[3, 0], [4, 1]], "steps": [0, 8]}, "zero attention 3.0,4.1 steps 0–8",
     {"heads": [[3, 0], [4, 1]], "steps": [0, 8]}),
    ({"name": "cache", "kind": "prefix"}, "cache prefix", {"kind": "prefix"}),
    (
        {"name": "sparse_cache", "by": "sinks", "keep": 0.125, "recent": 4, "refresh": 8, "per": "layer", "drift": 0.5},
        "sparse cache by sinks keep=0.125 recent=4 refresh=8 per layer drift=0.5",
        {"by": "sinks", "keep": 0.125, "recent": 4, "refresh": 8, "per": "layer", "drift": 0.5},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "label", "settings"), ENTRIES, ids=[label for _, label, _ in ENTRIES])
def test_an_entry_its_label_and_its_results(entry: dict[str, Any], label: str, settings: dict[str, Any]) -> None:
    (condition,) = read_entry(entry)
    assert condition.label == label
    assert condition.to_dict() == {"name": entry["name"], "k": 0, "rank": None, "rows": None, **settings}
    assert condition_from_dict(json.loads(json.dumps(condition.to_dict()))) == condition
    assert read_entry(condition.entry()) == [condition] and hash(condition) == hash(read_entry(entry)[0])
    assert all(sign.isalnum() or sign in "._-–" for sign in condition.key.replace("+", ""))
    made = condition.intervention(seed=3)
    assert (made is None) == (entry["name"] in ("none", "cache", "sparse_cache", "delete_positions")) and (
        made is None or made.is_noop == (entry["name"] == "noop")
    )


def test_every_intervention_has_an_entry_here() -> None:
    assert {entry["name"] for entry, _, _ in ENTRIES} == set(names())


def test_what_a_condition_makes() -> None:
    words: dict[str, Any] = {"k": 2, "kinds": ["word"], "value_norm": "high", "per": "model"}
    for name, kind in (("mask_sinks", sk.MaskSinks), ("mask_random", sk.MaskRandom)):
        made = read_entry({"name": name, **words, "below": {"rule": "head_share"}})[0].intervention(7)
        seeded = {"seed": 7} if name == "mask_random" else {}
        assert made == kind(k=2, kinds=("word",), value_norm="high", per="model", below=sk.HeadShare(), **seeded)
    assert read_entry({"name": "mask_positions", "positions": [0], "since": "second"})[0].intervention(0) == (
        sk.MaskPositions((0,), since="second")
    )
    assert read_entry({"name": "cut", "start": 0, "stop": 1})[0].intervention(0) == sk.CutContext(0.0, 1.0)
    random = read_entry({"name": "zero_values", "k": 2, "of": "random", "kinds": "content"})[0].intervention(4)
    assert random == sk.ZeroValues(of=sk.MaskRandom(k=2, seed=4, kinds="content"))


def test_lists_are_sweeps_except_where_a_list_is_one_value() -> None:
    swept = read_entry({"name": "mask_sinks", "k": [1, 5], "per": ["head", "layer"], "kinds": ["word", "digit"]})
    assert [(one.k, one.get("per", "head"), one.kinds) for one in swept] == [
        (k, per, ("word", "digit")) for k in (1, 5) for per in ("head", "layer")
    ]


@pytest.mark.parametrize(
    ("entry", "field", "said"),
    [
        ({}, "", "needs the field 'name'"),
        ({"name": ["mask_sinks"]}, "name", "must be one of none, noop"),
        ({"name": "mask_all"}, "name", "not 'mask_all'"),
        ({"name": "mask_sinks"}, "", "needs the field 'k': a whole number of at least 1"),
        ({"name": "mask_sinks", "k": 0}, "k", "must be a whole number of at least 1, not 0"),
        ({"name": "mask_sinks", "k": []}, "k", "not an empty list"),
        ({"name": "mask_sinks", "k": 1, "match": "mass"}, "match", "known are name, for, k, rank, rows"),
        ({"name": "mask_sinks", "k": 1, "kinds": "verbs"}, "kinds", "must be structural, content, or a list of mask, begin"),
        ({"name": "mask_sinks", "k": 1, "kinds": ["verb"]}, "kinds", "not ['verb']"),
        ({"name": "mask_sinks", "k": 1, "kinds": []}, "kinds", "not []"),
        ({"name": "mask_sinks", "k": 1, "kinds": [3]}, "kinds", "not [3]"),
        ({"name": "mask_sinks", "k": 1, "value_norm": "short"}, "value_norm", "must be low or high"),
        ({"name": "mask_sinks", "k": 1, "per": "step"}, "per", "must be head, layer or model"),
        ({"name": "mask_sinks", "k": 1, "score": "mean"}, "score", "must be sum or per_row"),
        ({"name": "mask_sinks", "k": 1, "score": "per_row", "rows": "last"}, "", "is wrong: Expected score='per_row' with"),
        ({"name": "mask_sinks", "k": 1, "above": 3}, "above", "must be a sink rule"),
        ({"name": "mask_sinks", "k": 1, "below": {"rule": "guess"}}, "below", "is no sink rule: Expected the name of a sink rule"),
        ({"name": "mask_sinks", "k": 1, "below": {"rule": "head_share", "group": "masked"}}, "", "has no effect here"),
        ({"name": "cut", "start": 0.5, "stop": 0.2}, "", "Expected 0 ≤ start ≤ stop, got 0.5 and 0.2"),
        ({"name": "window", "radius": None}, "radius", "not None"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_told_by_its_field(entry: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_entry(entry)
    assert caught.value.field == field and said in str(caught.value) and "\n" not in str(caught.value)


def test_a_study_file_tells_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    good = "name: mine\nmodels: [tiny-llada]\ntasks:\n  - {name: arithmetic, problems: 2}\nconditions:\n  - none\n"
    path.write_text(
        good + "  - {name: mask_sinks, k: 1, kinds: structural}\n  - {name: mask_random, k: 1, kinds: content}\n"
    )
    study = Study.load(path)
    assert [one.kinds for one, _ in study.conditions] == [None, "structural", "content"]
    assert Study.from_dict(study.to_dict()) == study
    path.write_text(good + "  - {name: mask_sinks, k: 1, per: step}\n")
    with pytest.raises(
        StudyError, match=r"^mine.yaml, line 7: conditions\[1\].per must be head, layer or model, not 'step'.$"
    ):
        Study.load(path)


def test_a_condition_refuses_settings_that_it_does_not_take() -> None:
    with pytest.raises(InterventionError, match="window takes radius, steps, not k"):
        Condition("window", 3, radius=2)
    with pytest.raises(AttributeError, match="colour"):
        Condition("none").colour  # noqa: B018


def test_a_condition_whose_intervention_is_not_installed_can_be_shown_but_not_made() -> None:
    gone = condition_from_dict({"name": "turn_sinks", "k": 2, "rank": None, "rows": None, "angle": 90})
    assert gone.label == "turn sinks k=2 angle=90" and gone.to_dict()["angle"] == 90
    with pytest.raises(InterventionError, match="turn_sinks"):
        gone.intervention(0)


def test_a_name_is_taken_once_and_never_by_a_reserved_word() -> None:
    with pytest.raises(InterventionError, match="exists already"):
        register("mask_sinks")(sk.Window)
    for reserved in ("name", "for"):
        setting = Setting(reserved, 1, whole(1), "a number")
        with pytest.raises(InterventionError, match="must not be called"):
            register("mine", setting)(sk.Window)
    assert "mine" not in INTERVENTIONS
