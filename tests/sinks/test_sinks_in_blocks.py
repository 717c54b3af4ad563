"""Sinks under block-causal attention: keys that are not there yet, and keys that fewer queries can see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sinkscope as sk
from golden_sets import newer
from sinkscope.sinks.columns import alive_keys, seen_by


@pytest.mark.parametrize("cache", [None, "exact"])
@pytest.mark.parametrize("group", ["all", "masked", "committed", "prompt"])
def test_seen_by_counts_the_queries_that_can_see_a_key(cache: str | None, group: str) -> None:
    found = newer("sdar")
    settings = replace(sk.Decode.sdar(length=11, block=4, steps=2, rule="static", temperature=0.0), cache=cache)
    ids = torch.tensor([[5, 9, 11, 6, 8, 3]])
    trace = sk.trace(found.model, ids, settings, keep=sk.Keep(dtype=torch.float32))
    assert isinstance(trace, sk.Trace)
    alive, seen = alive_keys(trace), seen_by(trace, group)
    assert seen is not None
    for step in range(trace.steps):
        start, stop = trace.blocks[step].tolist()
        first = start if cache else 0
        for key in range(trace.positions):
            count = 0
            for query in range(first, stop):
                kind = "masked" if trace.canvas[step, query] == trace.mask_id else "committed"
                kind = "prompt" if kind == "committed" and query < trace.prompt_length else kind
                count += group in ("all", kind) and query // 4 >= key // 4
            assert seen[step, key] == (count if key < stop else 0)
            assert alive[step, key] == (key < stop)
    received = trace.scores(group)
    assert bool((received <= seen[:, None, None] + 1e-3).all())  # no key gets more than 1 from each query that sees it


def test_edits_are_counted_and_survive_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = newer("llada2")
    case = next(case for case in found.facts["generation"] if case["name"] == "v21_speed_mode_b8")
    trace = sk.trace(found.model, found.tensor(case["prompt"]), found.settings(case))
    assert isinstance(trace, sk.Trace) and trace.edits is not None
    assert int(trace.edits.sum()) == case["edits"]
    changes = (trace.canvas[1:] != trace.canvas[:-1]).long()
    last = torch.where(changes.any(0), len(changes) - 1 - changes.flip(0).argmax(0), -1)
    assert torch.equal(trace.committed_at.long(), last)
    again = sk.Trace.load(trace.save(tmp_path / "edited.trace"))
    assert again.edits is not None and torch.equal(again.edits, trace.edits)
    assert len(trace.sinks()) and len(trace.heads())
