"""Conditions: every one from a study file to a label, to plain data, to what it puts into a model, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sinkscope as sk
from made_conditions import make_condition
from registries import restored
from sinkscope.attention.call import Call, Change
from sinkscope.conditions import NONE, NOOP, Condition, names
from sinkscope.errors import InterventionError, StudyError
from sinkscope.interventions import INTERVENTIONS, Intervention
from sinkscope.interventions.base import Match
from sinkscope.interventions.memory import Memory
from sinkscope.interventions.selected import SelectorIntervention, select_keys
from sinkscope.results import series
from sinkscope.study.schema import Study
from sinkscope.validation import FieldError, FromZero, Share, settings

# What a study file says → label and results: results.json depends on every letter.
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
    ({"name": "mask_built_in"}, "mask built in", {}),
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
    ({"name": "other_seed"}, "other seed 1", {"seed": 1}),
    ({"name": "cache", "kind": "prefix"}, "cache prefix", {"kind": "prefix"}),
    (
        {"name": "sparse_cache", "by": "sinks", "keep": 0.125, "recent": 4, "refresh": 8, "per": "layer", "drift": 0.5},
        "sparse cache by sinks keep=0.125 recent=4 refresh=8 per layer drift=0.5",
        {"by": "sinks", "keep": 0.125, "recent": 4, "refresh": 8, "per": "layer", "drift": 0.5},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "label", "words"), ENTRIES, ids=[label for _, label, _ in ENTRIES])
def test_an_entry_its_label_and_its_results(entry: dict[str, Any], label: str, words: dict[str, Any]) -> None:
    (condition,) = Condition.read(entry)
    assert condition.label == label
    assert condition.to_dict() == {"name": entry["name"], "k": 0, "rank": None, "rows": None, **words}
    assert Condition.from_dict(json.loads(json.dumps(condition.to_dict()))) == condition
    assert Condition.read(condition.entry()) == [condition] and hash(condition) == hash(Condition.read(entry)[0])
    assert all(sign.isalnum() or sign in "._-" for sign in condition.key)
    made = condition.seeded(3)
    decodes = entry["name"] in ("none", "cache", "sparse_cache", "delete_positions", "other_seed")
    assert (made is None) == decodes and (made is None or made.is_noop == (entry["name"] == "noop"))
    assert bool(condition.decode) == (decodes and entry["name"] != "none")


def test_every_intervention_has_an_entry_here() -> None:
    own = {name for name in names() if not name.startswith("owned_")}  # other tests register those
    assert {entry["name"] for entry, _, _ in ENTRIES} == own


def test_what_a_condition_makes() -> None:
    words: dict[str, Any] = {"k": 2, "kinds": ["word"], "value_norm": "high", "per": "model"}
    for name, kind in (("mask_sinks", sk.MaskSinks), ("mask_random", sk.MaskRandom)):
        made = Condition.read({"name": name, **words, "below": {"rule": "head_share"}})[0].seeded(7)
        seeded = {"seed": 7} if name == "mask_random" else {}
        assert made == kind(k=2, kinds=("word",), value_norm="high", per="model", below=sk.HeadShare(), **seeded)
    assert make_condition("mask_positions", positions=[0], since="second").seeded(0) == sk.MaskPositions(
        (0,), since="second"
    )
    assert make_condition("cut", start=0, stop=0.5).seeded(0) == sk.CutContext(0.0, 0.5)
    random = make_condition("zero_values", 2, of="random", kinds="content").seeded(4)
    assert random == sk.ZeroValues(of=sk.MaskRandom(k=2, seed=4, kinds="content"))
    nested = Condition.of(sk.ZeroValues(of=sk.MaskPositions((3,))))
    assert nested.entry() == {
        "name": "zero_values", "of": {"name": "mask_positions", "positions": [3], "since": "first"},
    }  # fmt: skip
    assert Condition.read(nested.entry()) == [nested]


def test_lists_are_sweeps_except_where_a_list_is_one_value() -> None:
    swept = Condition.read({"name": "mask_sinks", "k": [1, 5], "per": ["head", "layer"], "kinds": ["word", "digit"]})
    assert [(one.k, one.get("per", "head"), one.get("kinds")) for one in swept] == [
        (k, per, ["word", "digit"]) for k in (1, 5) for per in ("head", "layer")
    ]
    assert len({one.key for one in swept}) == 4 and len({one.series() for one in swept}) == 2


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({}, ("name",)),
        ({"name": ["mask_sinks"]}, ("name",)),
        ({"name": "mask_all"}, ("name",)),
        ({"name": "mask_sinks"}, ()),
        ({"name": "none", "k": 1}, ("k",)),
        ({"name": "mask_sinks", "k": -1}, ("k",)),
        ({"name": "mask_sinks", "k": True}, ("k",)),
        ({"name": "mask_sinks", "k": 10**30}, ("k",)),
        ({"name": "mask_sinks", "k": []}, ("k",)),
        ({"name": "mask_sinks", "k": 1, "match": "mass"}, ("match",)),
        ({"name": "mask_sinks", "k": 1, "for": "big"}, ("for",)),
        ({"name": "mask_random", "k": 1, "seed": 3}, ("seed",)),
        ({"name": "mask_sinks", "k": 1, "kinds": "verbs"}, ("kinds",)),
        ({"name": "mask_sinks", "k": 1, "kinds": ["verb"]}, ("kinds",)),
        ({"name": "mask_sinks", "k": 1, "kinds": []}, ("kinds",)),
        ({"name": "mask_sinks", "k": 1, "kinds": [3]}, ("kinds",)),
        ({"name": "mask_sinks", "k": 1, "per": "step"}, ("per",)),
        ({"name": "mask_sinks", "k": 1, "score": "per_row", "rows": "last"}, ("score",)),
        ({"name": "mask_sinks", "k": 1, "above": 3}, ("above",)),
        ({"name": "mask_sinks", "k": 1, "below": {"rule": "guess"}}, ("below",)),
        ({"name": "mask_sinks", "k": 1, "below": {"rule": "head_share", "group": "masked"}}, ("below",)),
        ({"name": "mask_sinks", "k": 1, "steps": [4, 1]}, ("steps",)),
        ({"name": "cut", "start": 0.5, "stop": 0.2}, ("stop",)),
        ({"name": "cut", "start": 0.5, "stop": 2}, ("stop",)),
        ({"name": "zero_values", "k": 1, "of": "air"}, ("of",)),
        ({"name": "zero_values", "k": 1, "persist": True}, ("persist",)),
        ({"name": "attenuate", "of": "positions", "to": 0.5}, ("positions",)),
        ({"name": "attenuate", "to": 0.5, "positions": [1]}, ("positions",)),
        ({"name": "attenuate", "by": 1, "matched": ["sinks"]}, ("matched",)),
        ({"name": "attenuate", "by": 1, "to": 1}, ("to",)),
    ],
)
def test_a_wrong_entry_is_told_by_its_field(entry: dict[str, Any], path: tuple[str, ...]) -> None:
    with pytest.raises(FieldError) as caught:
        Condition.read(entry)
    assert caught.value.path == path and "\n" not in str(caught.value)


def test_a_study_file_tells_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    good = "name: mine\nmodels: [tiny-llada]\ntasks:\n  - {name: arithmetic, problems: 2}\nconditions:\n  - none\n"
    path.write_text(
        good + "  - {name: mask_sinks, k: 1, kinds: structural}\n  - {name: mask_random, k: 1, for: diffusion}\n"
    )
    study = Study.load(path)
    assert [(one.get("kinds"), one.models) for one in study.conditions] == [
        (None, "all"), ("structural", "all"), (None, "diffusion"),
    ]  # fmt: skip
    assert Study.from_dict(study.to_dict()) == study
    path.write_text(good + "  - {name: mask_sinks, k: 1, per: step}\n")
    with pytest.raises(StudyError, match=r"^mine.yaml, line 7: conditions\[1\].per must be .* got 'step'.$"):
        Study.load(path)


def test_a_condition_whose_intervention_is_not_installed_can_be_shown_but_not_made() -> None:
    gone = Condition.from_dict({"name": "turn_sinks", "k": 2, "rank": None, "rows": None, "angle": 90})
    assert gone.label == "turn sinks k=2 angle=90" and gone.to_dict()["angle"] == 90
    with pytest.raises(InterventionError, match="turn_sinks"):
        gone.seeded(0)


# ---- an entry and a constructor accept and refuse the same

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5), st.sampled_from([0.0, 0.3, 1.0, 2.5, -1.0, float("nan"), 10**30]),
    st.sampled_from(["clean", "last", "sum", "per_row", "structural", "low", "model", "random", "all", "mass", "word", "x"]),
    st.lists(st.integers(-1, 3), max_size=2), st.sampled_from([[[0, 1]], [0.25, None], [None, 1], ["word"], [[1]]]),
    st.sampled_from([{"rule": "head_share"}, {"rule": "x"}, {"rule": "zscore", "group": "masked"}]),
)  # fmt: skip
MADE = sorted(name for name in INTERVENTIONS if issubclass(INTERVENTIONS[name], Intervention))


@given(data=st.data(), name=st.sampled_from(MADE))
def test_an_entry_and_a_constructor_accept_and_refuse_the_same(data: st.DataObject, name: str) -> None:
    kind: Any = INTERVENTIONS[name]
    known = [one.name for one in fields(kind) if one.name not in ("seed", "of", "matched")]
    words = data.draw(st.dictionaries(st.sampled_from([*known, "nothing"]), VALUES, max_size=4))
    if "k" in known:
        words.setdefault("k", 1)
    constructed = dict(words)
    if issubclass(kind, SelectorIntervention):
        words = {**kind.usual, "k": 1, **words} if "k" not in known else words
        constructed["of"] = select_keys("sinks", {"k": 1})
    try:
        made = kind(**constructed)
    except InterventionError:
        with pytest.raises((FieldError, ValueError)):
            kind.from_entry(words)
        return
    assert kind.from_entry(words) == made
    condition = Condition.of(made)
    assert Condition.read(condition.entry()) == [condition]
    assert Condition.from_dict(json.loads(json.dumps(condition.to_dict()))) == condition


# ---- what tables, claims and charts ask of a condition


@pytest.fixture
def fade() -> Iterator[type[Intervention]]:
    """An intervention of a package that is not ours: it names its controls and its aim, and no short name."""
    with restored():

        @settings(InterventionError)
        class Fade(Intervention, noop={"k": 0}):
            name: ClassVar[str] = "fade"
            aim: ClassVar[Any] = "weaken"
            always: ClassVar[tuple[str, ...]] = ("of",)
            k: FromZero = 1
            factor: Share = 0.5
            of: str = "sinks"

            def change(self, call: Call, memory: Memory) -> Change | None:
                return None

            def controls(self) -> Mapping[Match, Sequence[Intervention]]:
                return {"count": [Fade(self.k, self.factor, "random")]} if self.of == "sinks" else {}

        yield Fade


def test_an_intervention_from_outside_is_treated_like_our_own(fade: Any) -> None:
    (condition,) = Condition.read({"name": "fade", "k": 2, "factor": 0.25})
    assert condition.change == fade(2, 0.25) and condition.aim == "weaken"
    assert condition.controls() == {"count": [Condition.of(fade(2, 0.25, "random"))]}
    assert condition.label == "fade k=2 factor=0.25 of=sinks" and condition.short_name() is None
    with pytest.raises(InterventionError, match="exists already"):
        type("Again", (fade,), {"name": "mask_sinks"})


def test_which_conditions_have_controls_and_an_aim() -> None:
    conditions = [Condition.read(entry)[0] for entry, _, _ in ENTRIES]
    assert {one.name for one in conditions if one.controls()} == {
        "mask_sinks", "zero_values", "mean_values", "patch_values", "patch_keys", "steer", "zero_attention",
    }  # fmt: skip
    assert {one.name: one.aim for one in conditions if one.aim} == {
        "soften": "weaken", "penalise_sinks": "weaken", "off_by_one": "weaken", "add_sink_token": "weaken",
        "hold_sinks": "hold",
    }  # fmt: skip
    assert {one.name for one in conditions if one.must_take_effect} == {
        "mask_sinks", "mask_random", "mask_positions", "mask_instead", "mask_others", "cut",
    }  # fmt: skip
    assert Condition("none") == NONE and NOOP.seeded(0) == sk.MaskSinks(0)


STRONG = {"rule": "head_share", "epsilon": 0.3}


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"name": "mask_sinks", "k": 1}, "most-attended key"),
        ({"name": "mask_sinks", "k": 5, "above": STRONG}, "strong sinks"),
        ({"name": "mask_random", "k": 1, "match": "mass", "kinds": "content"},
         "random for most-attended content token, ≤ its mass"),
        ({"name": "mask_random", "k": 1, "above": STRONG, "persist": True, "aligned": True, "among": "prompt", "avoid": 5},
         "another key, same heads"),
        ({"name": "mask_others", "k": 1, "kinds": "structural", "among": "prompt", "scope": "all", "persist": True},
         "all special tokens but the sink"),
        *(({"name": "attenuate", "by": 1, "of": of, "matched": ["sinks", "others"]}, f"{name}, row-matched")
          for of, name in (("sinks", "sink"), ("others", "other keys"), ("structural", "special tokens"),
                            ("content", "content tokens"))),
    ],
)  # fmt: skip
def test_short_names(entry: dict[str, Any], name: str) -> None:
    (condition,) = Condition.read(entry)
    assert condition.short_name(("rank", "rows", "match") if entry.get("aligned") else ("rank", "rows")) == name


TOP = {"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all"}


@pytest.mark.parametrize(
    ("condition", "key"),
    [
        (TOP, ("top key", None)),
        ({**TOP, "rows": "last"}, ("last row's top key", None)),
        ({**TOP, "kinds": "content", "above": None}, ("content key", None)),
        ({**TOP, "above": STRONG}, ("strong sink", None)),
        ({**TOP, "above": {"rule": "zscore", "k": 3}}, None),
        ({**TOP, "k": 5}, None),
        ({**TOP, "keep_self": True}, None),
        ({**TOP, "name": "mask_random", "match": "mass", "kinds": "structural"}, ("structural key", "mass")),
        ({"name": "mask_positions", "k": 0, "rank": None, "rows": None, "positions": [0], "since": "second"}, ("position 0", None)),
        ({"name": "mask_positions", "positions": [0], "since": "first"}, None),
        ({"name": "none", "k": 0, "rank": None, "rows": None}, None),
    ],
)  # fmt: skip
def test_which_key_a_condition_masks(condition: Mapping[str, Any], key: series.MaskedKey | None) -> None:
    assert series.masked_key(condition) == key
