"""Tokens that a decoder replaces."""

from __future__ import annotations

import torch

import sinkscope as sk
from golden_sets import newer


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
