"""The experiments inside the denoising loop: what is drawn, ranked and grouped, on data whose answer is known."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import sinkscope as sk
from lab.experiments.carry.probe import probe
from lab.experiments.clock import drawn_rows
from lab.experiments.heads import Answers, confirmation, correlations, group, silenced


def heads(loss: Any, sink: Any) -> list[dict[str, Any]]:
    return [{"layer": layer, "head": head, "loss": loss(layer, head), "sink": sink(layer, head)}
            for layer, head in product(range(6), range(4))]  # fmt: skip


def test_idle_sink_heads_are_found_and_a_difference_of_layers_is_not_taken_for_them() -> None:
    idle = correlations(heads(lambda layer, head: -head - 0.1 * layer, lambda layer, head: head + 0.1 * layer))
    assert idle["correlation"] == pytest.approx(-1) and idle["within layers"] == pytest.approx(-1)
    assert idle["interval"][1] < -0.9
    noise = np.random.default_rng(1).random((2, 6, 4)) / 10  # late layers: idle and with sinks; within layers nothing
    apart = correlations(heads(lambda *at: -at[0] + noise[0][at], lambda *at: at[0] + noise[1][at]))
    assert apart["interval"][1] < -0.7 and apart["within layers interval"][1] > 0
    assert correlations(heads(lambda *_: 1.0, lambda *_: 1.0)[:3])["correlation"] is None


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-dream"])
def test_a_forward_from_a_heads_layer_on_is_the_whole_forward(name: str) -> None:
    model = sk.load(name)
    answers = Answers(model, "arithmetic", 3, 2)
    plain = answers.likelihood()
    for layer in (0, 2, 5):
        with silenced(model, layer, 1):
            begun = answers.likelihood(layer)
        with sk.intervene(model, sk.ZeroAttention(((layer, 1),))):
            whole = answers.likelihood()
        assert np.array_equal(begun, whole) and not np.array_equal(plain, whole)
    assert np.array_equal(answers.likelihood(), plain)  # nothing is left behind


def test_groups_leave_as_many_heads_of_each_layer_for_the_control() -> None:
    rows = heads(lambda layer, head: float(-10 * layer - head), lambda *_: 0.5)
    made = confirmation("tiny-llada", {"heads": rows, "model": {"heads": 4}}, "arithmetic")
    most, control, least, _ = made["conditions"][2:]
    assert most["heads"] == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]] and control == {**most, "of": "random"}
    assert least["heads"][0] == [5, 3] and not {*map(tuple, most["heads"])} & {*map(tuple, least["heads"])}
    assert len(group(rows, 4, 3)) == 3


def test_one_position_of_each_problem_and_step_is_drawn_and_its_clock_is_read() -> None:
    draw = torch.Generator().manual_seed(0)
    shards = []
    for prompts in ((0, 1), (2, 3), (4, 5)):
        about = torch.tensor([(prompt, step, place) for prompt, step, place in product(prompts, range(8), range(5))])
        vectors = torch.randn(len(about), 6, generator=draw)
        vectors[:, 2] = 3 * about[:, 1] + about[:, 2] / 100  # the planted clock
        made = dict(zip(("prompt", "step", "position"), about.int().unbind(1), strict=True))
        shards.append(
            {**made, "layers.0.resid_post": vectors, "layers.1.resid_post": torch.randn(len(about), 6, generator=draw)}
        )
    found, about = drawn_rows(shards, 0)  # type: ignore[arg-type]
    assert sorted(map(tuple, about[:, :2].tolist())) == sorted(product(range(6), range(8)))
    assert len({*about[:, 2].tolist()}) > 1
    assert np.allclose(found["layers.0.resid_post"][:, 2], 3 * about[:, 1] + about[:, 2] / 100, atol=1e-5)
    groups, labels = about[:, 0].astype(np.int64), about[:, 1].astype(np.float64)
    clock, none = (probe(found[f"layers.{layer}.resid_post"], labels, groups) for layer in (0, 1))
    assert clock.r2 > 0.95 and clock.found and not none.found
