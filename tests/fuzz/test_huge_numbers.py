"""Numbers that no tensor can hold, in every field of every public setting: one sentence, in Python and in study files."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

import sinkscope as sk
from sinkscope.errors import SinkscopeError
from sinkscope.interventions import INTERVENTIONS
from sinkscope.study.schema import Study

HUGE: list[Any] = [
    10**20, 2**70, -(2**70), 10**400, 10**5000, 1e300, -1e300, float("inf"), float("nan"),
    [10**5000], (10**400,), [[2**70, 0]],
]  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {  # so that nothing else is missing
    "CutContext": {"start": 0, "stop": 1}, "MaskPositions": {"positions": (0,)}, "ZeroAttention": {"heads": ((0, 0),)},
    "Steer": {"vector": (1.0,)}, "MaskSinks": {"k": 1}, "MaskRandom": {"k": 1}, "Window": {"radius": 1},
    "Decode": {"family": "llada", "length": 8}, "SparseCache": {"keep": 0.5}, "AblateChannels": {"top": 1},
    "Attenuate": {"of": sk.MaskSinks(k=1), "to": 0.5}, "ZeroValues": {"of": sk.MaskSinks(k=1)},
    "MeanValues": {"of": sk.MaskSinks(k=1)}, "MaskInstead": {"of": sk.MaskSinks(k=1), "positions": (1,)},
    "PatchValues": {"of": sk.MaskSinks(k=1)}, "PatchKeys": {"of": sk.MaskSinks(k=1)}, "AddSinkToken": {"count": 1},
    "Soften": {"temperature": 2.0}, **{name: {"k": 1} for name in ("HoldSinks", "PenaliseSinks", "RotateSinks")},
}  # fmt: skip
CLASSES = [
    one for name in sorted(set(dir(sk)) - {"Model", "Trace", "HookContext", "Study", "Run"})
    if inspect.isclass(one := getattr(sk, name)) and dataclasses.is_dataclass(one)
]  # fmt: skip


def _sentence(error: SinkscopeError) -> None:
    assert 0 < len(str(error)) < 500 and "\n" not in str(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_in_python(kind: type) -> None:
    refused = 0
    for field in dataclasses.fields(kind):
        for value in HUGE:
            try:
                kind(**{**NEEDED.get(kind.__name__, {}), field.name: value})
            except SinkscopeError as error:
                _sentence(error)
                refused += 1
    assert refused or not dataclasses.fields(kind)


@pytest.mark.parametrize("name", sorted(INTERVENTIONS))
def test_in_a_study_file(name: str) -> None:
    plain = {"name": "x", "models": ["tiny-llada"], "tasks": [{"name": "recall", "problems": 1}]}
    for setting in INTERVENTIONS[name].hints():
        for value in HUGE:
            try:
                Study.from_dict({**plain, "conditions": ["none", {"name": name, setting: value}]})
            except SinkscopeError as error:
                _sentence(error)


def test_the_ones_that_were_found() -> None:
    for make in (
        lambda: sk.Threshold(10**400), lambda: sk.MaskPositions((10**20,)), lambda: sk.MaskSinks(k=2**70),
        lambda: sk.ZScore(k=1e300), lambda: sk.MaskPositions(positions=[10**5000]), lambda: sk.Ray(patience=10**400),
    ):  # fmt: skip
        with pytest.raises(SinkscopeError) as caught:
            make()
        _sentence(caught.value)
    assert sk.MaskSinks(k=2**40).k == 2**40 and sk.Threshold(1e9).epsilon == 1e9
