"""The masking experiment against the authors' models: same canvases, same masked keys, same column sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sinkscope as sk
from golden_sets import Golden, golden_sets

RUNS = [
    pytest.param(found, run, id=f"{name}-{run['name']}")
    for name, found in golden_sets()
    for run in found.facts.get("sink_masking", {}).get("runs", [])
]


@pytest.mark.parametrize(("found", "run"), RUNS)
def test_sink_masking_run(found: Golden, run: dict[str, Any]) -> None:
    name = found.facts["sink_masking"]["case"]
    case = next(case for case in found.facts["generation"] if case["name"] == name)
    masking = sk.MaskSinks(k=run["K"], rank="clean" if run["name"].endswith("clean") else "as_run")
    model, prompt, settings = found.model, found.tensor(case["prompt"]), found.settings(case)
    with sk.intervene(model, masking, record=True) as active:
        done = sk.decode(model, prompt, settings)
    assert torch.equal(done.history, found.tensor(run["canvas"]))
    assert active.effect.leak == 0

    layers = model.config.num_hidden_layers
    masked = torch.stack(active.masked)[:, 0].unflatten(0, (-1, layers))
    expected = torch.zeros_like(masked)
    expected[1:].scatter_(-1, found.tensor(run["masked"])[1:], True)
    assert torch.equal(masked, expected)

    trace = sk.trace(model, prompt, settings, interventions=[masking], keep=sk.Keep(dtype=torch.float32))
    assert torch.equal(trace.canvas, found.tensor(run["canvas"])[:, 0])
    torch.testing.assert_close(trace.scores(), found.tensor(run["received_used"]), atol=1e-4, rtol=0)
