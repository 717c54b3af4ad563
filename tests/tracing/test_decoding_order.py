"""Order of decoding: left to right, right to left, ties, and a sink that stays or goes with the frontier."""

import pytest
import torch

import sinkscope as sk
from sinkscope.decoding.settings import Decode
from sinkscope.tracing.dynamics import decoding_order


def made(order, sinks, confidence=None, prompt=2):
    """A trace whose positions behind the prompt are committed in this order, with the main sink at these positions."""
    steps, width = len(order), prompt + len(order)
    received = torch.full((steps, 1, 1, 3, width), 0.1)
    for step, position in enumerate(sinks):
        received[step, 0, 0, 0, position] = 5.0
    committed_at = torch.full((width,), -1, dtype=torch.int32)
    for step, position in enumerate(order):
        committed_at[prompt + position] = step
    sure = torch.full((steps, width), torch.nan)
    for step in range(steps):
        still = (committed_at >= step).nonzero().squeeze(-1)
        sure[step, still] = torch.arange(len(still), dtype=torch.float32) / 10 if confidence is None else confidence
    return sk.Trace(
        received=received, queries=torch.ones(steps, 3, dtype=torch.int32), canvas=torch.zeros(steps + 1, width, dtype=torch.int64),
        confidence=sure, committed_at=committed_at, blocks=torch.tensor([[prompt, width]] * steps, dtype=torch.int32),
        prompt_length=prompt, settings=Decode.llada(length=len(order)), model={}, backend="tiled", vocabulary={}, mask_id=1,
        causal=False, prompt="", text="",
    )  # fmt: skip


def test_left_to_right_with_a_sink_at_the_frontier():
    found = decoding_order(made([0, 1, 2, 3], [2, 3, 4, 5]))
    assert (found.commits, found.leftmost, found.ties) == (4, 1.0, 0.0)
    assert found.sink_to_leftmost == 0 and found.follows_leftmost == pytest.approx(1)
    assert found.follows_rightmost is None  # the rightmost open position stays the same


def test_right_to_left_with_a_static_sink():
    found = decoding_order(made([3, 2, 1, 0], [0, 0, 0, 0]))
    assert found.leftmost == 0.25  # the last one has no choice
    assert found.sink_to_leftmost == -2 and found.follows_rightmost is None
    moving = decoding_order(made([3, 2, 1, 0], [5, 4, 3, 2]))
    assert moving.sink_to_rightmost == 0 and moving.follows_rightmost == pytest.approx(1)


def test_equal_confidences_are_ties_wherever_there_was_a_choice():
    assert decoding_order(made([0, 1, 2], [0, 0, 0], confidence=1.0)).ties == 1.0


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-llama"])
def test_a_real_trace(name):
    found = decoding_order(sk.trace(sk.load(name), "Tom has 3 apples.", length=8))
    assert found.commits <= 8 and 0 < found.leftmost <= 1
    if name == "tiny-llama":
        assert found.leftmost == 1.0 and found.ties is None
