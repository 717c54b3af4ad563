"""When an intervention acts: steps=(from, to) on every one of them, in Python and in study files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sinkscope as sk
from sinkscope.conditions import Condition
from sinkscope.errors import InterventionError, StudyError
from sinkscope.interventions import INTERVENTIONS, Intervention

QUESTION = "Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?"
EVERY: list[Intervention] = [
    sk.MaskSinks(1), sk.MaskRandom(1), sk.MaskPositions((2,)), sk.MaskInstead(sk.MaskSinks(1), (1, 2)), sk.CutContext(2, 5),
    sk.Window(3), sk.ZeroValues(sk.MaskSinks(1)), sk.MeanValues(sk.MaskSinks(1)), sk.PatchValues(sk.MaskSinks(1), source="first"),
    sk.PatchKeys(sk.MaskSinks(1), source="previous"), sk.SoftmaxOffByOne(), sk.Soften(2.0), sk.AddSinkToken(),
    sk.PenaliseSinks(1, penalty=2.0), sk.HoldSinks(1), sk.RotateSinks(1), sk.Attenuate(sk.MaskPositions((2,)), to=0.0),
]  # fmt: skip


def received(model: sk.Model, decode: sk.Decode, *changes: Intervention) -> list[torch.Tensor]:
    """Column sums of every call, in order."""
    with sk.intervene(model, *changes), sk.observe(model) as seen:
        sk.decode(model, model.encode(QUESTION), decode)
    return seen.received


@pytest.mark.parametrize("change", EVERY, ids=lambda change: type(change).__name__)
@pytest.mark.parametrize("steps", [(3, 5), (0.375, 0.625)], ids=["forwards", "shares"])
def test_nothing_changes_before_and_something_does_within(change: Intervention, steps: tuple[float, float]) -> None:
    model = sk.load("tiny-llada")
    decode, layers = sk.Decode.llada(8, block=8, steps=8), model.config.num_hidden_layers
    limited = replace(change, steps=steps)  # type: ignore[type-var]
    plain, after = received(model, decode), received(model, decode, limited)
    same = [
        all(torch.allclose(one, other, atol=1e-4) for one, other in zip(before, now, strict=True))
        for before, now in zip(
            zip(*[iter(plain)] * layers, strict=True), zip(*[iter(after)] * layers, strict=True), strict=True
        )
    ]
    assert same[:3] == [True] * 3
    if not isinstance(change, sk.ZeroValues | sk.MeanValues | sk.PatchValues):  # those show in the layer above only
        assert not same[3]


def test_the_window_is_half_open_and_ends() -> None:
    model = sk.load("tiny-llada")
    decode, layers = sk.Decode.llada(8, block=8, steps=8), model.config.num_hidden_layers
    for steps, acts in (
        ((2, 4), [2, 3]),
        ((0.25, 0.5), [2, 3]),
        ((6, None), [6, 7]),
        ((None, 0.25), [0, 1]),
        ((0, 1), [0]),
    ):
        calls = received(model, decode, sk.MaskPositions((2,), steps=steps))
        hidden = [number // layers for number, call in enumerate(calls) if not bool(call[..., 2].any())]
        assert hidden == [step for step in acts for _ in range(layers)]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llada"])
def test_since_the_second_is_steps_from_1(name: str) -> None:
    model = sk.load(name)
    decode = sk.Decode.autoregressive(8) if model.causal else sk.Decode.llada(8, block=8, steps=8)
    since, steps = (
        received(model, decode, change)
        for change in (sk.MaskPositions((0,), since="second"), sk.MaskPositions((0,), steps=(1, None)))
    )
    assert all(torch.equal(one, other) for one, other in zip(since, steps, strict=True))
    with pytest.raises(InterventionError, match="since"):
        sk.MaskPositions((0,), since="second", steps=(1, None))


def test_what_is_no_window_is_refused() -> None:
    for wrong in ((3, 1), (2, 2), (0.5, 0.5), (1.5, None), (True, 2), (-1, None), (0,), 5, "all"):
        with pytest.raises(InterventionError, match="steps"):
            sk.MaskSinks(1, steps=wrong)  # type: ignore[arg-type]
    with pytest.raises(InterventionError, match="steps of its own"):
        sk.ZeroValues(sk.MaskSinks(1, steps=(0, 2)))
    model = sk.load("tiny-llada")
    with pytest.raises(InterventionError, match="decoder"), sk.intervene(model, sk.Soften(2.0, steps=(0.0, 0.5))):
        model.logits(model.encode(QUESTION))


def test_steps_in_study_files() -> None:
    assert all("steps" in one.hints() for one in INTERVENTIONS.values() if issubclass(one, Intervention))
    (condition,) = Condition.read({"name": "mask_sinks", "k": 1, "steps": [0.25, None]})
    assert condition.seeded(0) == sk.MaskSinks(1, steps=(0.25, None))
    assert Condition.from_dict(condition.to_dict()) == condition and "25%" in condition.label
    (plain,) = Condition.read({"name": "mask_sinks", "k": 1})
    assert "steps" not in plain.to_dict() and plain.key != condition.key
    (of,) = Condition.read({"name": "zero_values", "k": 1, "steps": [1, 4]})
    assert of.seeded(0) == sk.ZeroValues(sk.MaskSinks(1), steps=(1, 4))
    entries = [{"name": "mask_sinks", "k": 1, "steps": [4, 1]}]
    entries += [{"name": "mask_positions", "positions": [0], "since": "second", "steps": [0, 1]}]
    for wrong in entries:
        values = {"name": "x", "models": ["tiny-llada"], "tasks": [{"name": "recall", "problems": 1}]}
        with pytest.raises(StudyError):
            sk.Study.from_dict({**values, "conditions": ["none", wrong]})
