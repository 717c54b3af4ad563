"""Interventions on activations name their controls: the same done elsewhere, so that a study compares with it."""

from __future__ import annotations

import pytest

from sinkscope.conditions import Condition


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ablate_channels", {"top": 1}),
        ("ablate_channels", {"channels": [3], "layers": [1, 2]}),
        ("zero_attention", {"heads": [[3, 0], [4, 1]]}),
        ("steer", {"vector": [1.0, 0.0], "strength": 2.0}),
    ],
)
def test_the_control_is_the_same_done_at_random(name: str, settings: dict[str, object]) -> None:
    condition = Condition.read({"name": name, **settings})[0]
    (control,) = condition.controls()["count"]
    assert control == Condition.read({"name": name, **settings, "of": "random"})[0]
    assert control.controls() == {}  # a control has none of its own
