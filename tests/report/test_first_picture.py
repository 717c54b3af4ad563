"""The first picture: its title and caption recomputed from the trace with plain loops, and its map in the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_runs import Opener, made_trace

from sinkscope.report import write_traces, writing
from sinkscope.report.sample import compact, first_head, own_heads
from sinkscope.tracing import Trace


def sinks_of(trace: Trace, layer: int, head: int) -> list[dict[int, float]]:
    """The sinks of each step with what they received: more than 3 above the mean, in column sums."""
    assert trace.received is not None
    columns = trace.received[:, layer, head].float().sum(1).tolist()  # [step][key]
    return [{key: value for key, value in enumerate(row) if value > sum(row) / len(row) + 3} for row in columns]


def moved(trace: Trace, layer: int, head: int) -> tuple[int, int] | None:
    """Where the largest sink of a head stands in the first and in the second half, if it really goes from one to the other."""
    steps = sinks_of(trace, layer, head)
    mains = [max(step, key=lambda key: (step[key], -key)) for step in steps if step]
    if len(set(mains)) < 2 or max(sum(key in step for step in steps) for key in mains) >= 0.8 * len(steps):
        return None
    early, late = mains[: len(mains) // 2], mains[len(mains) // 2 :]
    ends = tuple(max(sorted({*half}), key=half.count) for half in (early, late))
    return ends if abs(ends[1] - ends[0]) > 3 else None  # type: ignore[return-value]


def test_title_and_caption_come_from_the_trace() -> None:
    traces = [made_trace(seed=seed) for seed in (0, 3)] + [made_trace("made-dream", way="left", steps=8, length=8)]
    chosen = first_head(traces)
    assert chosen is not None and chosen["moves"]
    trace = traces[chosen["sample"]]
    model, layer, head = trace.model["name"], chosen["layer"], chosen["head"]
    assert chosen["title"] == f"A sink that moves: {model}, layer {layer}, head {head}"
    ends = moved(trace, layer, head)
    assert ends is not None and ends == (chosen["from"], chosen["to"])
    mine = [one for one in traces if one.model["name"] == model]
    heads = [(one, i, j) for one in mine for i in range(one.layers) for j in range(one.heads_count)]
    like = sum(moved(*place) is not None for place in heads)
    assert 0 < like < len(heads)
    assert chosen["caption"] == (
        f"Its largest sink is mostly at position {ends[0]} in the first half of the steps and at {ends[1]} in the second. "
        f"{like} of {len(heads)} heads of {model} "
        f"({100 * like / len(heads):.1f} %, generations: {len(mine)}) move theirs by more than 3 positions."
    )


def still(model: str = "made-still") -> Trace:
    """Only heads whose sink stays: the odd ones of a made trace."""
    trace = made_trace(model, maps=False)
    assert trace.received is not None
    return replace(trace, received=trace.received[:, :, 1::2].contiguous())


def test_where_no_sink_moves_the_page_says_so(look: Opener, tmp_path: Path) -> None:
    trace = still()
    chosen = first_head([trace])
    assert chosen is not None and not chosen["moves"] and chosen["like"] == 0
    assert all(moved(trace, i, j) is None for i in range(trace.layers) for j in range(trace.heads_count))
    assert chosen["title"].startswith("A sink that stays: made-still")
    assert f"0 of {chosen['heads']} heads of made-still (0.0 %, generations: 1) move theirs" in chosen["caption"]
    assert chosen["from"] == chosen["to"]
    assert first_head([replace(trace, interventions=[{"name": "MaskSinks"}])]) is None
    page = look(write_traces([trace], tmp_path / "page.html"), "tab=explorer")
    assert page.evaluate("[sinkscope.view.layer, sinkscope.view.head]") == [chosen["layer"], chosen["head"]]


def test_a_file_too_small_for_every_head_keeps_the_map_of_the_first_one(
    look: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FULL_LIMIT", 1)
    trace = made_trace(maps=False)
    chosen = first_head([trace])
    assert chosen is not None and trace.received is not None
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
