"""What positions paid to the hidden keys is the trace's own count, and the halves are split by it."""

import pytest
import torch

import sinkscope as sk
from lab.experiments import order_mechanism as mechanism
from sinkscope.attention.patch import patched
from sinkscope.decoding import decode
from sinkscope.tasks import problems


def test_paid_is_the_attention_that_the_top_keys_of_the_step_before_receive() -> None:
    model = sk.load("tiny-dream")
    ids = model.encode(next(iter(problems("arithmetic", n=1))).prompt)
    settings = sk.Decode.llada(8, 8, 8)
    tap = mechanism.Paid(sk.MaskSinks(1))
    with pytest.raises(mechanism._SeenError), patched(model.module, tap):
        decode(model, ids, settings, on_step=mechanism._until_looked)
    trace = sk.trace(model, ids, settings)
    assert isinstance(trace, sk.Trace)
    received = torch.as_tensor(trace.received).double().sum(3)  # [step, layer, head, key]
    top = received[mechanism.LOOKED - 1].argmax(-1, keepdim=True)
    expected = received[mechanism.LOOKED].gather(-1, top).mean(1).sum()
    assert tap.paid is not None and tap.layers == received.shape[1]
    assert float(tap.paid.double().sum()) == pytest.approx(float(expected), rel=1e-4)


def test_halves_are_the_positions_that_paid_more_and_less() -> None:
    depends = torch.tensor([0.1, 0.9, 0.5, 0.2, 0.8, 0.3])
    there = torch.tensor([True, True, True, True, True, False])
    halves = mechanism._halves(depends, there)
    assert {name: places.tolist() for name, places in halves.items()} == {"high": [1, 4], "low": [3, 0]}


def test_a_run_has_a_row_per_problem_and_mask_and_masking_changes_confidence() -> None:
    model = sk.load("tiny-dream")
    rows = mechanism.run(model, list(enumerate(problems("arithmetic", n=2))), "confidence")
    assert [(row["mask"], row["problem"]) for row in rows] == [(mask, n) for mask in mechanism.MASKS for n in (0, 1)]
    assert any(row["mask"] == "top key" and row["confidence_high"] != 0 for row in rows)
    high, low = ([row[f"depends_{half}"] for row in rows if row["mask"] == "top key"] for half in ("high", "low"))
    assert all(more > less for more, less in zip(high, low, strict=True))  # type: ignore[operator]
