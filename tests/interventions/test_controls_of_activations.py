"""Interventions on activations name their controls: the same done elsewhere, so that a study compares with it."""

from __future__ import annotations

import pytest

from sinkscope.interventions.conditions import Condition
from sinkscope.results.series import controls_of as controls


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
    condition = Condition(name, **settings)
    (control,) = controls(condition)["count"]
    assert control == Condition(name, **settings, of="random")
    assert controls(control) == {}  # a control has none of its own
