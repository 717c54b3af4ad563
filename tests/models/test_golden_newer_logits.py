"""Logits, router choices and received attention of the newer families equal what the authors' own code computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from golden_sets import NewerGolden, newer_by_family

LOGITS, SUMS = 1e-4, 5e-5
FORWARDS = [
    pytest.param(param.values[0], name, id=f"{param.id}-{name}")
    for param in newer_by_family()
    for name in ("unpadded", "block", "left_padded", "right_padded", "left_padded_block")
    if name in param.values[0].facts["forward"]
]


def inputs(found: NewerGolden, name: str) -> tuple[Tensor, Tensor | None, int | None]:
    """ids, attention mask and block length of a forward."""
    facts = found.facts["forward"][name]
    ids, block = found.tensor(facts["input_ids"]), facts.get("block_length")
    if name == "left_padded" and "block rule" in facts["convention"]:
        block = found.facts["forward"]["block"]["block_length"]
    if name == "left_padded_block":
        return ids, (ids != found.facts["special_ids"]["pad"]).long(), block
    return ids, found.optional(facts.get("attention_mask")), block


@pytest.mark.parametrize(("found", "name"), FORWARDS)
def test_logits(found: NewerGolden, name: str) -> None:
    facts = found.facts["forward"][name]
    ids, mask, block = inputs(found, name)
    logits, expected = found.model.logits(ids, mask, block=block), found.tensor(facts["logits"])
    if facts.get("compare") == "real rows":
        assert mask is not None
        logits, expected = logits[mask.bool()], expected[mask.bool()]
    torch.testing.assert_close(logits, expected, atol=LOGITS, rtol=0)


@pytest.mark.parametrize(
    ("found", "name"), [case for case in FORWARDS if case.values[1] in case.values[0].facts["received_attention"]]
)
def test_received(found: NewerGolden, name: str) -> None:
    ids, mask, block = inputs(found, name)
    with sk.observe(found.model) as seen:
        found.model.logits(ids, mask, block=block)
    received = torch.stack(seen.received, 1)[:, :, :, 0]  # [batch, layer, head, key]
    expected = found.tensor(found.facts["received_attention"][name]["tensor"])
    torch.testing.assert_close(received if expected.ndim == 4 else received[0], expected, atol=SUMS, rtol=0)


@pytest.mark.parametrize("found", newer_by_family())
def test_received_at_every_step(found: NewerGolden) -> None:
    facts = found.facts["received_attention"]["per_step"]
    case = next(case for case in found.facts["generation"] if case["name"] == facts["case"])
    ids, _ = found.prompt(case)
    trace = sk.trace(found.model, ids, found.settings(case), keep=sk.Keep(dtype=torch.float32))
    expected = found.tensor(facts["tensor"])
    torch.testing.assert_close(trace.scores(), expected, atol=SUMS, rtol=0)
    assert torch.equal(trace.canvas, found.tensor(case["canvas"])[:, 0])
    torch.testing.assert_close(trace.queries.sum(1).float(), expected[:, 0, 0].sum(-1).float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("found", [case for case in newer_by_family() if "router" in case.values[0].facts])
def test_router_choices(found: NewerGolden) -> None:
    chosen: list[tuple[Tensor, Tensor]] = []

    def take(_: Any, __: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        order = output[2].sort(-1)
        chosen.append((order.values, output[1].gather(-1, order.indices)))

    gates = [part for name, part in found.model.module.named_modules() if name.endswith("mlp.gate")]
    handles = [gate.register_forward_hook(take) for gate in gates]
    try:
        ids, mask, block = inputs(found, "block")
        found.model.logits(ids, mask, block=block)
    finally:
        for handle in handles:
            handle.remove()
    facts = found.facts["router"]
    indices, weights = found.tensor(facts["indices"]), found.tensor(facts["weights"])
    assert torch.equal(torch.stack([ids for ids, _ in chosen]).view_as(indices), indices)
    torch.testing.assert_close(torch.stack([w for _, w in chosen]).view_as(weights), weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("found", newer_by_family())
def test_facts_come_from_the_checkpoint(found: NewerGolden) -> None:
    special = found.facts["special_ids"]
    model = found.model
    assert (model.mask_id, model.eos_id, model.family.name) == (special["mask"], special["eos"], found.family)
    assert (model.tokenizer, model.shift, model.causal) == (None, False, False)
    assert model.defaults.sampler == {"llada2": "llada2", "sdar": "sdar", "a2d": "mdlm"}[found.family]
