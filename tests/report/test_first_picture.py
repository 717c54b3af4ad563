"""The first pictures: which heads they show and where sinks begin and end, by plain loops; and their maps in the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_runs import Opener, causal_trace, made_trace

from sinkscope.report import write_traces, writing
from sinkscope.report.sample import compact, own_heads, sink_ends, typical_heads
from sinkscope.tracing import Trace


def sinks_of(trace: Trace, layer: int, head: int) -> list[dict[int, float]]:
    """The sinks of each step with what they received: more than 3 above the mean, in column sums."""
    assert trace.received is not None
    columns = trace.received[:, layer, head].float().sum(1).tolist()  # [step][key]
    return [{key: value for key, value in enumerate(row) if value > sum(row) / len(row) + 3} for row in columns]


def stays(trace: Trace, layer: int, head: int) -> bool:
    """Whether one key is a sink in at least 80 % of the steps."""
    steps = sinks_of(trace, layer, head)
    return max(sum(key in step for step in steps) for key in range(trace.positions)) >= 0.8 * len(steps)


def test_the_first_heads_are_one_of_each_kind_of_model_whose_sink_stays(look: Opener, tmp_path: Path) -> None:
    traces = [made_trace(seed=0), made_trace("made-dream", way="left", steps=8, length=8), causal_trace()]
    first, second = typical_heads(traces)
    assert traces[first["sample"]].causal and not traces[second["sample"]].causal
    trace = traces[second["sample"]]
    assert stays(trace, second["layer"], second["head"])
    name = trace.model["name"]
    assert second["title"] == f"{name} (diffusion), layer {second['layer']}, head {second['head']}"
    assert typical_heads([replace(trace, interventions=[{"name": "MaskSinks"}])]) == []


def test_the_ends_of_a_sink_are_those_of_a_plain_loop() -> None:
    trace = made_trace(seed=0)
    answer = trace.part_steps("answer")
    wanted = []
    for layer in range(trace.layers):
        for head in range(trace.heads_count):
            judged = sinks_of(trace, layer, head)[answer.start : answer.stop]
            steps = [max(step, key=lambda key: step[key]) for step in judged if step]
            wanted += [[steps[0], steps[-1]]] if steps else []
    assert sorted(sink_ends(trace)) == sorted(wanted) and wanted


def test_a_file_too_small_for_every_head_keeps_the_map_of_the_first_one(
    look: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FULL_LIMIT", 1)
    trace = made_trace(maps=False)
    (chosen,) = typical_heads([trace])
    assert trace.received is not None
    layer, head = chosen["layer"], chosen["head"]
    assert (layer, head) in own_heads(trace)
    assert [list(one) for one in own_heads(trace)] == compact(trace, "one")[0]["ownHeads"]
    page = look(write_traces([trace], tmp_path / "page.html"), "tab=explorer")
    assert page.evaluate("sinkscope.sample.detail") == "compact"
    assert page.evaluate("[sinkscope.view.layer, sinkscope.view.head]") == [layer, head]
    values = np.array(page.evaluate("Array.from(sinkscope.plane.values)")).reshape(trace.steps, -1)
    assert (values == trace.received[:, layer, head].float().sum(1).numpy()).all()  # the head's own map, exact
    assert "mean" not in page.evaluate("sinkscope.place()")
    for step in (0, trace.steps - 1):
        assert page.evaluate(f"sinkscope.sinksAt({step})") == [*sinks_of(trace, layer, head)[step]]
    other = page.evaluate("(sinkscope.view.head = 3, sinkscope.view.layer = 2, sinkscope.place())")
    assert ("keeps only the path" in other) == ((2, 3) not in own_heads(trace))
