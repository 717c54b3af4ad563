"""Verdicts on control, and the studies that ask for it."""

from __future__ import annotations

from typing import Any

import pytest
from made_rows import cell, dynamics, heads, none, tables
from sinkscope.study.analysis.verdicts import verdicts

import sinkscope as sk
from lab.experiments.donors import main, moved
from sinkscope.results.rows import Heads


def judged(
    *rows: tuple[Any, Any], before: dict[str, float] | None = None, causal: bool = False
) -> dict[str, tuple[str, str]]:
    """Verdict → value and sentence, of conditions as (pooled row, dynamics under it)."""
    start = before or {"moving": 0.4, "static": 0.4, "none": 0.2, "absorption": 0.2}
    pooled = [none(causal=causal), *(row for row, _ in rows)]
    made = verdicts(tables(pooled=pooled, dynamics=[dynamics(**start), *(one for _, one in rows)]), 0.05)
    return {row.name: (row.value, row.because) for row in made}


def under(name: str, lost: int, **shares: float) -> tuple[Any, Any]:
    return cell(lost, name=name, k=0, rows=None), dynamics(
        condition=name, **{"moving": 0.4, "absorption": 0.2, **shares}
    )


@pytest.mark.parametrize(
    ("rows", "value"),
    [
        ([under("soften", 0, absorption=0.1)], "free"),
        ([under("soften", 60, absorption=0.1)], "at a price"),
        ([under("soften", 11, absorption=0.1)], "undecided"),
        ([under("soften", 0, absorption=0.19)], "no"),  # answers are whole, but sinks are too
        ([under("soften", 60, absorption=0.1), under("off_by_one", 0, absorption=0.1)], "free"),
        ([under("soften", 60, absorption=0.1), under("off_by_one", 0, absorption=0.2)], "at a price"),
    ],
)
def test_weaker_sinks_and_their_price(rows: list[tuple[Any, Any]], value: str) -> None:
    found = judged(*rows)
    assert found["weaker"][0] == value and "still" not in found
    assert found["weaker"][1].count("does not count") == sum((one.absorption or 0) >= 0.19 for _, one in rows)


def test_held_sinks_count_by_their_moving_heads() -> None:
    assert judged(under("hold_sinks", 0, moving=0.1, absorption=0.4))["still"][0] == "free"
    assert judged(under("hold_sinks", 80, moving=0.1))["still"][0] == "at a price"
    assert judged(under("hold_sinks", 0, moving=0.3))["still"][0] == "no"


def test_an_arm_is_judged_by_its_columns_so_far() -> None:
    row, now = under("soften", 0, absorption=0.2)
    columns = Heads(**heads(absorption=0.05))
    before = dynamics(columns=Heads(**heads(absorption=0.2)))
    traced = [before, dynamics(condition="soften", columns=columns)]
    made = verdicts(tables(pooled=[none(causal=True), row], dynamics=traced), 0.05)
    assert {one.name: one.value for one in made}["weaker"] == "free"
    assert now is not None


def test_conditions_that_control_nothing_have_no_such_verdict() -> None:
    found = judged((cell(3), dynamics(condition="mask_sinks", absorption=0.05)))
    assert "weaker" not in found and "still" not in found


@pytest.mark.parametrize("name", ["control", "patches"])
def test_the_shipped_studies_compare_with_nothing_and_with_a_no_op(name: str) -> None:
    study = sk.Study.load(name)
    conditions = {condition.name for condition, _ in study.conditions}
    assert {"none", "noop"} <= conditions
    assert [task.problems for task in study.tasks] == [100, 100] and len(study.models) == 4
    for condition, models in study.conditions:
        if condition.name in ("hold_sinks", "rotate_sinks"):
            assert models == "diffusion"
    assert sk.Study.from_dict(study.to_dict()) == study


def test_a_patched_sink_is_compared_with_as_many_random_keys(tmp_path: Any) -> None:
    """A run of planted models: the carrier's answers follow its sink, and not other keys."""
    study = sk.Study.from_dict({
        "name": "patched", "models": ["planted-carrier"], "tasks": [{"name": "repeat", "problems": 12, "difficulty": 2}],
        "conditions": ["none", "noop", {"name": "patch_values", "k": 1, "source": "next", "of": ["sinks", "random"]}],
    })  # fmt: skip
    rows = {row["label"]: row for row in sk.run(study, out=tmp_path / "run", workers=1).results["cells"]}
    sinks = rows["patch values K=1 clean from next by all rows"]
    random = rows["patch values K=1 clean random from next by all rows"]
    assert rows["none"]["accuracy"] == 1.0 and sinks["accuracy"] < 0.5 < random["accuracy"]
    assert sinks["controls"]["count"]["accuracy"] == random["accuracy"] and "mass" not in sinks["controls"]
    assert random["controls"] == {}
    assert main([str(tmp_path / "run")]) == 0
    letters = {row.label: row for row in moved(tmp_path / "run")}
    patched, other = letters[sinks["label"]], letters[random["label"]]
    # One letter of eight is written before there is a map to rank by: the whole answer is nobody's, but for equal letters.
    assert patched.n == 12 and patched.own == sinks["correct"] and other.source <= other.own
    assert letters["none"].own == 12
    # Token by token the patched answers follow the source, and no other problem; those of random keys follow nobody.
    came, chance = (sum(pair[side] for pair in patched.tokens) / len(patched.tokens) for side in (0, 1))
    assert came > 2 * chance and came > 0.6 and all(pair[0] == 0 for pair in letters["none"].tokens)
    for name, kept in (("study.yaml", "kept.yaml"), ("results.parquet", "kept.parquet")):
        (tmp_path / kept).write_bytes((tmp_path / "run" / name).read_bytes())
    assert moved(tmp_path / "kept.yaml") == moved(tmp_path / "run")


def test_a_folder_without_patches_is_refused(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1 and "study.yaml" in capsys.readouterr().err


def test_a_study_keeps_the_lens_of_kept_traces_only(tmp_path: Any) -> None:
    study = sk.Study.from_dict({
        "name": "lens", "models": ["tiny-llada"], "tasks": [{"name": "arithmetic", "problems": 2}],
        "conditions": ["none"], "trace": {"problems": 2, "keep": 1, "lens": True},
    })  # fmt: skip
    assert study.to_dict()["trace"]["lens"] is True
    sk.run(study, out=tmp_path / "run", workers=1)
    (kept,) = (tmp_path / "run" / "traces").glob("*.safetensors")
    trace = sk.Trace.load(kept)
    assert trace.lens_tokens is not None and trace.lens_tokens.shape[1] == 6
    assert "lens" not in sk.Study.load("paper").to_dict()["trace"]  # runs that were begun before can go on
