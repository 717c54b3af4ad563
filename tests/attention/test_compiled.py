"""torch.compile: a compiled module, or compiled layers, keep traces and masks; what cannot be seen is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from modules import Stack

import sinkscope as sk
from sinkscope.errors import CaptureError

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


def compiled(part: Any) -> Any:
    return torch.compile(part, backend="eager")  # graphs are made and run; no compiler is needed for them


@pytest.mark.parametrize("whole", [True, False])
def test_traces_and_masks_stay(whole: bool) -> None:
    plain, model = sk.load("planted-static"), sk.load("planted-static")
    if whole:
        model.module.base_model.forward = compiled(model.module.base_model.forward)
    else:
        for layer in model.module.base_model.layers:
            layer.forward = compiled(layer.forward)
    for interventions in ([], [sk.MaskSinks(k=1)]):
        one, other = (
            sk.trace(each, IDS, length=4, steps=2, block=4, interventions=interventions) for each in (plain, model)
        )
        assert torch.equal(one.canvas, other.canvas)
        torch.testing.assert_close(one.received, other.received)


def test_a_graph_without_python_is_said() -> None:
    module = Stack()
    with torch.no_grad():
        graph = torch.jit.trace(module, torch.randn(1, 5, 16))
    with pytest.raises(CaptureError, match="caught none"), sk.observe(graph):
        graph(torch.randn(1, 5, 16))
