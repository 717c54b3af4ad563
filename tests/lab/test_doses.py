"""The dose figure puts every condition under whose attention it takes, and never pools models or tasks."""

from pathlib import Path

import pytest

from lab.experiments.doses import figure, kind_of, lines, panels

SHARE = {"rule": "head_share", "epsilon": 0.3}


def cell(condition: dict[str, object], mass: float | None, task: str = "arithmetic") -> dict[str, object]:
    return {
        "model": "m", "task": task, "condition": condition, "label": str(condition["name"]), "mass_share": mass,
        "correct": 15, "n": 20, "difference": -0.25, "difference_low": -0.45, "difference_high": -0.05,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ({"name": "none"}, None),
        ({"name": "attenuate", "of": "sinks", "above": SHARE, "by": 0.1}, "sink"),
        ({"name": "attenuate", "of": "random", "match": "mass", "by": 0.1}, "matched"),
        ({"name": "attenuate", "of": "sinks", "kinds": "content", "by": 0.5}, "content"),
        ({"name": "mask_random", "k": 5}, "random"),
        ({"name": "mask_instead", "k": 1}, "template"),
        ({"name": "zero_values", "k": 1}, "values"),
    ],
)
def test_every_condition_of_the_study_has_its_kind(condition: dict[str, object], kind: str | None) -> None:
    assert kind_of(condition) == kind


def test_a_panel_per_task_in_the_order_of_doses(tmp_path: Path) -> None:
    cells = [
        cell({"name": "none"}, None),
        cell({"name": "mask_random", "k": 5}, 0.30),
        cell({"name": "mask_random", "k": 2}, 0.02),
        cell({"name": "mask_random", "k": 2}, 0.04, task="stories"),
    ]
    found = panels(cells)
    assert [(key, [one["mass_share"] for one in kinds["random"]]) for key, kinds in found.items()] == [
        (("m", "arithmetic"), [0.02, 0.30]),
        (("m", "stories"), [0.04]),
    ]
    assert [line.split(" | ")[-3:] for line in lines(found)[2:]] == [
        [share, "15 of 20", "-25 [-45, -5] |"] for share in ("2.0", "30.0", "4.0")
    ]
    figure(found, tmp_path / "doses.svg")
    assert "m, stories (n = 20)" in (tmp_path / "doses.svg").read_text("utf-8")
