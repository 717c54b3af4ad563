"""The answer and what stands behind its end, apart; classes by several definitions side by side: against plain loops."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch

import sinkscope as sk
from golden_sets import golden
from sinkscope.errors import TraceError
from sinkscope.tracing import DEFINITIONS
from sinkscope.tracing.trace import find_answer_end

sys.path.insert(0, str(Path(__file__).parents[1] / "sinks"))
from made_traces import MASK, autoregressive, diffusion, random_trace

PROMPT, LENGTH = 4, 16


def plain_part(trace: sk.Trace) -> int:
    """How many steps belong to the answer, position by position."""
    last = 0
    for step in range(trace.steps):
        for position in range(trace.prompt_length, trace.answer_end or trace.positions):
            if trace.canvas[step, position] == MASK or (trace.causal and trace.committed_at[position] >= step):
                last = step + 1
    return last


@pytest.mark.parametrize("end", [None, 4, 7, 12, 20])
@pytest.mark.parametrize("order", ["right", "left"])
def test_the_answer_takes_the_steps_until_its_end_is_written(end: int | None, order: str) -> None:
    trace = replace(diffusion([[[3] * LENGTH]], order=order), answer_end=end)
    last = plain_part(trace)
    assert trace.part_steps("answer") == slice(0, last) and trace.part_steps("rest") == slice(last, LENGTH)
    assert last == (LENGTH if order == "left" and end != 4 else (end or 20) - PROMPT)


@pytest.mark.parametrize("seed", range(6))
def test_random_canvases(seed: int) -> None:
    for end in (3, 5, 9, 12):
        trace = replace(random_trace(seed), answer_end=end)
        assert trace.part_steps("answer").stop == plain_part(trace)


def test_a_causal_answer_ends_with_its_last_token() -> None:
    trace = replace(autoregressive(prompt=5, length=8), answer_end=9)
    assert trace.part_steps("answer") == slice(0, plain_part(trace)) == slice(0, 4)


def test_tables_of_a_part_are_the_tables_of_its_steps() -> None:
    path = [2] * 6 + [9, None, 11, None, 13, None, 9, None, 11, None]  # it stands, then comes and goes
    trace = replace(diffusion([[path]]), answer_end=PROMPT + 6)
    rule = sk.Threshold(3)
    for part, first, last in (("answer", 0, 6), ("rest", 6, LENGTH), ("all", 0, LENGTH)):
        expected = [(step, key) for step, key in enumerate(path) if key is not None and first <= step < last]
        assert trace.sinks(rule, part=part).select("step", "position").rows() == expected
        cut = trace.select(steps=slice(first, last))
        assert trace.heads(rule, part=part).equals(cut.heads(rule))
        assert trace.tokens(rule, part=part)["sinks"].sum() == len(expected)
    motions = [trace.heads(rule, part=part)["motion"].item() for part in ("answer", "rest", "all")]
    assert motions == ["static", "flash", "relocating"]


def test_a_moving_head_comes_and_goes_or_relocates() -> None:
    away = [5, 5, 5, None] * 4  # one place, and not always there
    around = [5] * 8 + [9] * 8
    trace = diffusion([[away], [around], [[3] * LENGTH], [[None] * LENGTH]])
    heads = trace.heads(sk.Threshold(3))
    assert heads["class"].to_list() == ["moving", "moving", "static", "none"]
    assert heads["motion"].to_list() == ["intermittent", "relocating", "static", "none"]


def test_definitions_side_by_side() -> None:
    trace = random_trace(1)
    table = trace.heads(rule=DEFINITIONS)
    assert table["definition"].unique(maintain_order=True).to_list() == [
        "threshold 3 sum",
        "head_share 0.1",
        "head_share 0.3",
    ]
    for rule in DEFINITIONS:
        assert table.filter(pl.col("definition") == rule.definition).drop("definition").equals(trace.heads(rule))


def test_an_epsilon_alone_is_of_the_default_rule() -> None:
    assert random_trace(2).sinks(epsilon=2).equals(random_trace(2).sinks(sk.Threshold(2, unit="sum")))
    causal = autoregressive()
    assert causal.sinks(epsilon=2).equals(causal.sinks(sk.Threshold(2, unit="uniform")))
    with pytest.raises(TraceError):
        causal.sinks(sk.Threshold(2), epsilon=2)


def test_words_that_no_part_has() -> None:
    trace = diffusion([[[3] * LENGTH]])
    with pytest.raises(TraceError):
        trace.sinks(part="end")  # type: ignore[arg-type]
    with pytest.raises(TraceError):
        trace.heads(part="rest")  # no answer_end: the answer is all


def test_where_an_answer_ends() -> None:
    kinds = {1: "word", 2: "punctuation", 3: "end", 4: "mask", 7: "word"}
    for canvas, end in (
        ([1, 1, 1, 3, 1, 3], 4),
        ([1, 1, 1, 7, 1, 3], 4),
        ([1, 1, 1, 1, 2, 4], 4),
        ([1, 1, 2, 2, 4, 4], 2),
    ):
        assert find_answer_end(torch.tensor(canvas), 2, {7, None}, kinds.__getitem__) == end


def test_a_recorded_trace_knows_its_end(tmp_path: Path) -> None:
    model = golden("llada").model
    trace = sk.trace(model, torch.tensor([[5, 9, 11]]), sk.Decode.llada(8, block=4, steps=8))
    assert isinstance(trace, sk.Trace) and trace.answer_end is not None
    final = trace.canvas[-1].tolist()
    ends = [place for place, token in enumerate(final) if place >= 3 and token in (*model.eos_ids, model.eot_id)]
    assert trace.answer_end == (ends[0] + 1 if ends else 11)
    assert sk.Trace.load(trace.save(tmp_path / "one.trace")).answer_end == trace.answer_end
    assert trace.select(steps=slice(0, 2)).answer_end == trace.answer_end
