"""What every key received, against the authors' code: one forward, a padded batch, every step of a generation."""

from __future__ import annotations

import pytest
import torch

import sinkscope as sk
from golden_sets import Golden, by_family

TOLERANCE = 5e-5


@pytest.mark.parametrize("found", by_family())
def test_one_forward(found: Golden) -> None:
    with sk.observe(found.model) as seen:
        found.model.logits(found.tensor("forward.input_ids"))
    received = torch.stack(seen.received)[:, 0, :, 0]
    torch.testing.assert_close(received, found.tensor("received.unpadded"), atol=TOLERANCE, rtol=0)
    assert seen.layers == list(range(found.model.config.num_hidden_layers))
    assert set(seen.backends) == {"tiled"}


@pytest.mark.parametrize("found", by_family())
def test_padded_queries_and_keys_count_nowhere(found: Golden) -> None:
    mask = found.tensor("forward_padded.attention_mask")
    with sk.observe(found.model) as seen:
        found.model.logits(found.tensor("forward_padded.input_ids"), mask)
    received = torch.stack(seen.received, 1)[:, :, :, 0]
    torch.testing.assert_close(received, found.tensor("received.left_padded"), atol=TOLERANCE, rtol=0)
    assert not received.mT[mask[:, None, :, None].expand_as(received.mT) == 0].any()


@pytest.mark.parametrize("found", by_family())
def test_every_step_of_a_generation(found: Golden) -> None:
    facts = found.facts["received_attention"]["per_step"]
    case = next(case for case in found.facts["generation"] if case["name"] == facts["case"])
    keep = sk.Keep(dtype=torch.float32)
    trace = sk.trace(found.model, found.tensor(case["prompt"]), found.settings(case), keep=keep)
    torch.testing.assert_close(trace.scores(), found.tensor(facts["tensor"]), atol=TOLERANCE, rtol=0)
    assert torch.equal(trace.canvas, found.tensor(case["canvas"])[:, 0])
    assert trace.queries.sum(1).tolist() == [trace.positions] * trace.steps


@pytest.mark.parametrize("found", by_family())
def test_agrees_with_eager_attention_maps(found: Golden) -> None:
    ids = found.tensor("forward.input_ids")
    module = found.model.module
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        maps = module(ids, is_causal=False, output_attentions=True, use_cache=False).attentions
        with sk.observe(module) as seen:
            found.model.logits(ids)
        assert module.config._attn_implementation == "eager"
    finally:
        module.set_attn_implementation(before)
    for expected, received in zip(maps, seen.received, strict=True):
        torch.testing.assert_close(received[:, :, 0], expected.detach().sum(2), atol=TOLERANCE, rtol=0)
