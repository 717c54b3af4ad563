"""The table of `sinkscope bench`: both sides are timed on the same tensors of every shape, and the backend is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sinkscope.attention import selfcheck as compare


def test_both_sides_are_timed_on_the_same_tensors_of_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[tuple[int, int, bool]]] = {"sdpa": [], "attend": []}

    def counted(name: str, flag: str, call: Any) -> Any:
        def run(q: torch.Tensor, *args: Any, **words: Any) -> Any:
            seen[name].append((id(q), q.shape[2], words[flag]))
            return call(q, *args, **words)

        return run

    sdpa = counted("sdpa", "is_causal", compare.scaled_dot_product_attention)
    monkeypatch.setattr(compare, "scaled_dot_product_attention", sdpa)
    monkeypatch.setattr(compare, "attend", counted("attend", "causal", compare.attend))
    rows = compare.against_sdpa(torch.device("cpu"), torch.float32, repeats=2, lengths=(16, 32), heads=2, dim=8)
    assert [(row["length"], row["causal"]) for row in rows] == [(16, False), (16, True), (32, False), (32, True)]
    assert seen["sdpa"] == seen["attend"] and len(seen["sdpa"]) == 4 * 3  # a round to warm up, and two that count
    assert all(row["backend"] == "tiled" and min(row["sdpa"], row["attend"]) > 0 for row in rows)
