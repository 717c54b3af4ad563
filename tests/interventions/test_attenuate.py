"""Attenuate: what is left to the keys, what the others take up, what the dose says, and how study files name it."""

from __future__ import annotations

import pytest
import torch

import sinkscope as sk
from golden_sets import golden
from sinkscope.conditions import Condition
from sinkscope.errors import InterventionError, StudyError

KEYS = (1, 4)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("words", [{"to": 0.05}, {"by": 0.5}, {"to": 0.0}, {"by": 1.0}], ids=str)
def test_columns_and_dose_against_the_untouched_maps(family: str, words: dict[str, float]) -> None:
    model, ids = golden(family).model, golden(family).tensor("forward.input_ids")
    keep = [(0, head) for head in range(model.config.num_attention_heads)]
    change = sk.Attenuate(sk.MaskPositions(KEYS, layers=(0,)), **words)
    with sk.intervene(model, change) as active, sk.observe(model) as after:
        model.logits(ids)
    weights = _first_layer(model, ids)  # [batch, head, query, key]
    had = weights[..., KEYS].sum(-1, keepdim=True)
    kept = had.clamp(max=words["to"]) if "to" in words else had * (1 - words["by"])
    expected = weights * (1 - kept) / (1 - had)
    expected[..., KEYS] = weights[..., KEYS] * kept / had
    torch.testing.assert_close(after.received[0][:, :, 0], expected.sum(2), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        after.received[0].sum((2, 3)), torch.full(after.received[0].shape[:2], float(ids.shape[1]))
    )
    calls = model.config.num_hidden_layers
    assert active.effect.mass_share == pytest.approx(float((had - kept).mean()) / calls, abs=1e-5)
    assert active.effect.keys == len(keep) * len(KEYS) * len(ids)


def _first_layer(model: sk.Model, ids: torch.Tensor) -> torch.Tensor:
    from sinkscope.attention.call import Call, CallResult, Tap
    from sinkscope.attention.patch import patched

    class First(Tap):
        weights: torch.Tensor

        def needs_sums_fused(self, call: Call) -> bool:
            return call.layer == 0

        def take(self, call: Call, outcome: CallResult) -> None:
            if call.layer == 0:
                keys = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
                self.weights = (call.q @ keys.mT * call.q.shape[-1] ** -0.5).softmax(-1)

    tap = First()
    with patched(model.module, tap):
        model.logits(ids)
    return tap.weights


@pytest.mark.parametrize("words", [{"to": 1}, {"to": 1.0}, {"by": 0}], ids=str)
def test_noop_is_bit_identical(words: dict[str, float]) -> None:
    model, ids = golden("llada").model, golden("llada").tensor("forward.input_ids")
    noop = sk.Attenuate(sk.MaskPositions((0,)), **words)
    assert noop.is_noop
    with sk.intervene(model, noop) as active:
        assert torch.equal(model.logits(ids), model.logits(ids))
        after = model.logits(ids)
    assert torch.equal(after, model.logits(ids)) and active.effect.mass_share == 0


def test_hidden_altogether_is_masked() -> None:
    model, ids = golden("llada").model, golden("llada").tensor("forward.input_ids")
    found = []
    for change in (
        sk.MaskPositions(KEYS),
        sk.Attenuate(sk.MaskPositions(KEYS), to=0),
        sk.Attenuate(sk.MaskPositions(KEYS), by=1),
    ):
        with sk.intervene(model, change) as active:
            found.append((model.logits(ids), active.effect.mass_share))
    for logits, dose in found[1:]:
        torch.testing.assert_close(logits, found[0][0], atol=1e-4, rtol=1e-4)
        assert dose == pytest.approx(found[0][1], abs=1e-5)


def test_a_row_that_sees_nothing_else_stays_as_it_is() -> None:
    model = sk.load("tiny-llama")
    ids = model.encode("Tom has 3 apples.")
    with sk.intervene(model, sk.Attenuate(sk.MaskPositions((0,)), to=0.0)), sk.observe(model) as seen:
        logits = model.logits(ids)
    assert bool(torch.isfinite(logits).all())
    for received in seen.received:  # key 0 keeps its own row, and every row sums to 1
        torch.testing.assert_close(received[:, :, 0, 0], torch.ones_like(received[:, :, 0, 0]), atol=1e-5, rtol=0)
        torch.testing.assert_close(received.sum((2, 3)), torch.full_like(received[:, :, 0, 0], ids.shape[1]))


def test_what_is_refused() -> None:
    for wrong in ({}, {"to": 0.1, "by": 0.1}, {"to": 1.5}, {"by": -0.1}, {"to": "half"}):
        with pytest.raises(InterventionError):
            sk.Attenuate(sk.MaskSinks(1), **wrong)  # type: ignore[arg-type]
    with pytest.raises(InterventionError):
        sk.Attenuate(0.5, to=0.5)  # type: ignore[arg-type]


def test_study_files() -> None:
    strong = {"rule": "head_share", "epsilon": 0.3}
    made = {
        "sinks": sk.Attenuate(sk.MaskSinks(1, above=sk.HeadShare(0.3)), by=0.25),
        "random": sk.Attenuate(
            sk.MaskRandom(4, per="model", persist=True, aligned=True, seed=7), to=0.0
        ),
        "positions": sk.Attenuate(sk.MaskPositions((2,)), to=0.1),
        "instead": sk.Attenuate(sk.MaskInstead(sk.MaskSinks(1, above=sk.HeadShare(0.3)), (0, 1)), by=1),
    }  # fmt: skip
    entries = {
        "sinks": {"above": strong, "by": 0.25},
        "random": {"k": 4, "per": "model", "persist": True, "aligned": True, "to": 0.0},
        "positions": {"positions": [2], "to": 0.1},
        "instead": {"above": strong, "positions": [0, 1], "by": 1},
    }
    for of, words in entries.items():
        (condition,) = Condition.read({"name": "attenuate", "of": of, **words})
        assert condition.seeded(7) == made[of]
        assert Condition.from_dict(condition.to_dict()) == condition
        assert not condition.must_take_effect
    assert len(Condition.read({"name": "attenuate", "by": [0.1, 0.2, 0.5]})) == 3
    for wrong in ({"to": 2}, {}, {"to": 0.1, "by": 0.1}, {"by": 0.1, "persist": True}, {"by": 0.1, "positions": [1]}):
        values = {"name": "x", "models": ["tiny-llada"], "tasks": [{"name": "recall", "problems": 1}]}
        with pytest.raises(StudyError):
            sk.Study.from_dict({**values, "conditions": ["none", {"name": "attenuate", **wrong}]})
