"""The table of `sinkscope bench`: both sides are timed on every shape, and the backend is named."""

from __future__ import annotations

import torch

from sinkscope.attention.timing import against_sdpa


def test_every_length_is_timed_causal_and_not() -> None:
    rows = against_sdpa(torch.device("cpu"), torch.float32, repeats=1, lengths=(16, 32), heads=2, dim=8)
    assert [(row.length, row.causal) for row in rows] == [(16, False), (16, True), (32, False), (32, True)]
    assert all(row.backend == "tiled" and row.sdpa > 0 and row.ratio == row.attend / row.sdpa for row in rows)
