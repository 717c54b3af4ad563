"""Readings at sinks against a plain loop, on real traces; matching; intervals; what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sinkscope as sk
from lab.experiments.carry.__main__ import answer_of, main
from lab.experiments.carry.clock import Clock
from lab.experiments.carry.gather import ALIKE, Gathered, clustered
from lab.experiments.carry.pairs import LIKE, matched, sink_marks
from lab.experiments.carry.probe import drawn_r2
from lab.experiments.carry.reading import MEASURES, read_trace
from sinkscope.tracing import Trace

PROMPT = "There are 8 books. Then Fay finds 1. Then Fay loses 2.\nHow many books are left?"
MODELS = ("tiny-llada", "tiny-dream", "tiny-llama")


@pytest.fixture(scope="module", params=MODELS)
def traced(request: pytest.FixtureRequest) -> tuple[sk.Model, Trace]:
    model = sk.load(request.param)
    return model, sk.trace(model, PROMPT)


def test_pairs_differ_in_nothing_but_being_sinks(traced: tuple[sk.Model, Trace]) -> None:
    _, trace = traced
    marks = sink_marks(trace)
    pairs = matched(trace, marks)
    assert pairs
    for pair in pairs:
        heads = marks[pair.step].sum((0, 1))
        assert heads[pair.sink] > 0 and heads[pair.other] == 0
        tokens = [int(trace.canvas[pair.step, place]) for place in (pair.sink, pair.other)]
        assert trace.vocabulary[tokens[0]][1] == trace.vocabulary[tokens[1]][1]
        if pair.state == "masked":
            assert tokens == [trace.mask_id] * 2
        assert len({place < trace.prompt_length for place in (pair.sink, pair.other)}) == 1
        start, stop = trace.blocks[pair.step].tolist()
        assert len({start <= place < stop for place in (pair.sink, pair.other)}) == 1
        if pair.alike:
            assert abs(int(trace.committed_at[pair.sink]) - int(trace.committed_at[pair.other])) <= LIKE
    for step in range(trace.steps):
        used = [place for pair in pairs if pair.step == step for place in (pair.sink, pair.other)]
        assert len(used) == len(set(used))


def test_every_number_as_by_a_plain_loop(traced: tuple[sk.Model, Trace]) -> None:
    model, trace = traced
    answer = answer_of(trace)
    assert answer is not None and trace.vocabulary[int(trace.canvas[-1, answer])][0].strip() == "7"
    reading = read_trace(model, trace, answer=answer)
    assert set(reading.values) == set(MEASURES)
    seen = 0
    for place, pair in list(enumerate(reading.pairs))[:: max(1, len(reading.pairs) // 12)]:
        # A causal model never looks ahead: its canvas up to this step gives the same states.
        canvas = trace.canvas[pair.step if not trace.causal else -1][None]
        logs = sk.lens(model, canvas)[:, 0].log_softmax(-1)  # [layer, position, vocab]
        for who, at in enumerate((pair.sink, pair.other)):
            for target, where in {"own": at, "left": at - 1, "right": at + 1, "answer": answer}.items():
                got = reading.values[f"probability {target}"][place, who]
                written = 0 <= where < trace.positions and int(trace.committed_at[where]) < pair.step
                if (
                    not 0 <= where < trace.positions
                    or (target != "own" and written)
                    or (target == "answer" and where == at)
                ):
                    assert np.isnan(got).all()
                    continue
                token = int(trace.canvas[-1, where])
                np.testing.assert_allclose(got, logs[:, at, token].exp().numpy(), atol=1e-4)
                if float(logs[-1, at, token].exp()) > 0.01:
                    rank = 1 + int((logs[-1, at] > logs[-1, at, token]).sum())
                    assert reading.values[f"rank {target}"][place, who, -1] == pytest.approx(math.log10(rank))
                seen += 1
    assert seen > 10


def test_norms_are_those_of_the_heads_that_make_it_a_sink() -> None:
    model = sk.load("tiny-llada")
    trace = sk.trace(model, PROMPT, keep=sk.Keep(value_norms=True))
    reading, marks = read_trace(model, trace), sink_marks(trace)
    assert trace.value_norms is not None
    for place, pair in list(enumerate(reading.pairs))[::20]:
        for layer in range(trace.layers):
            heads = marks[pair.step, layer, :, pair.sink].nonzero()[:, 0].tolist()
            got = reading.values["value"][place, :, layer]
            if not heads:
                assert np.isnan(got).all()
                continue
            for who, at in enumerate((pair.sink, pair.other)):
                expected = trace.value_norms[pair.step, layer, heads, at].mean()
                assert got[who] == pytest.approx(float(expected), rel=1e-3)


def test_a_trace_of_a_changed_model_is_refused() -> None:
    model = sk.load("tiny-llada")
    trace = sk.trace(model, PROMPT, interventions=sk.MaskSinks(k=1))
    with pytest.raises(sk.SinkscopeError, match="untouched"):
        read_trace(model, trace)


def test_means_per_problem_and_their_difference() -> None:
    """Two problems with known values: pairs are averaged within a problem first, and both of a pair must be readable."""
    model = sk.load("tiny-llada")
    reading = read_trace(model, sk.trace(model, PROMPT))
    gathered = Gathered()
    gathered.add(0, reading, 24)
    gathered.add(1, reading, 24)
    rows = {(row["subset"], row["quarter"], row["measure"], row["layer"]): row for row in gathered.table(draws=100)}
    masked = [place for place, pair in enumerate(reading.pairs) if pair.state == "masked"]
    values = reading.values["probability own"][masked, :, 2]
    row = rows["masked", -1, "probability own", 2]
    assert row["sinks"] == pytest.approx(values[:, 0].mean()) and row["others"] == pytest.approx(values[:, 1].mean())
    assert row["low"] == pytest.approx(row["difference"]) == pytest.approx(row["high"])  # equal problems: no spread
    assert row["problems"] == 2 and row["pairs"] == 2 * len(masked)
    assert {key[0] for key in rows} <= {"masked", "committed", "prompt", ALIKE}
    quarters = [
        rows[key]["pairs"] for key in rows if key[0] == "masked" and key[2:] == ("probability own", 2) and key[1] >= 0
    ]
    assert sum(quarters) == row["pairs"]


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_r2_of_drawn_groups_as_by_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 6, 60)
    labels, predicted = rng.normal(size=60), rng.normal(size=60)
    names = np.unique(groups)
    weight = np.random.default_rng(3).multinomial(len(names), np.full(len(names), 1 / len(names)), 20)
    for found, counts in zip(drawn_r2(labels, predicted, groups, 20, 3), weight, strict=True):
        rows = np.concatenate(
            [np.flatnonzero(groups == name) for name, n in zip(names, counts, strict=True) for _ in range(n)]
        )
        y, p = labels[rows], predicted[rows]
        assert found == pytest.approx(1 - ((y - p) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def test_the_interval_of_a_mean_holds_it() -> None:
    values = np.random.default_rng(0).normal(1.0, 0.5, 200)
    low, high = clustered(values, 0)
    assert low < values.mean() < high and low > 0.8 and high < 1.2


def test_a_clock_finds_what_was_planted_at_sinks_only() -> None:
    """States at sinks hold the number of masks left, those at other masks hold noise."""
    model = sk.load("tiny-llada")
    trace = sk.trace(model, PROMPT)
    reading, clock = read_trace(model, trace), Clock()
    draw = torch.Generator().manual_seed(0)
    for problem in range(12):
        states = torch.randn(reading.states.shape, generator=draw)
        for place, pair in enumerate(reading.pairs):
            states[place, 0, :, 5] = (trace.canvas[pair.step] == trace.mask_id).sum() / 4.0
        clock.add(problem, trace, type(reading)(reading.pairs, reading.values, states))
    rows = [row for row in clock.table(shuffles=4) if row["label"] == "left"]
    assert len(rows) == trace.layers
    for row in rows:
        assert row["sinks"] > 0.8 and row["others"] < 0.3 and row["low"] > 0.3
        assert row["sinks_shuffled_high"] < 0.3


def test_the_command_writes_a_model_s_files_and_the_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tiny-llada", "-n", "2", "--tasks", "arithmetic", "--out", str(tmp_path)]
    assert main(words) == 0
    found = json.loads((tmp_path / "tiny-llada.json").read_text(encoding="utf-8"))
    assert found["problems"] == 2 and found["readings"]
    assert (tmp_path / "tiny-llada.parquet").is_file() and (tmp_path / "carry.png").stat().st_size > 1000
    assert main(words) == 0 and "exists already" in capsys.readouterr().out
    assert main([*words[:2], "3", *words[3:]]) == 1 and "other" in capsys.readouterr().err
    assert main(["--out", str(tmp_path / "none")]) == 1 and "Expected readings" in capsys.readouterr().err
    assert main(["no-such-model", "--out", str(tmp_path / "none")]) == 1
