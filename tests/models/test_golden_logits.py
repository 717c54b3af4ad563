"""Logits equal what the authors' own code computes on the same weights."""

from __future__ import annotations

import pytest
import torch

from golden_sets import LOGITS, SAME, Golden, by_family, golden


@pytest.mark.parametrize("found", by_family())
def test_logits(found: Golden) -> None:
    names = found.facts["forward"]["unpadded"]
    logits = found.model.logits(found.tensor(names["input_ids"]))
    torch.testing.assert_close(logits, found.tensor(names["logits"]), atol=LOGITS, rtol=0)


@pytest.mark.parametrize("found", by_family())
def test_padded_logits(found: Golden) -> None:
    names = found.facts["forward"]["left_padded"]
    mask = found.tensor(names["attention_mask"])
    logits, expected = found.model.logits(found.tensor(names["input_ids"]), mask), found.tensor(names["logits"])
    if found.family != "llada":  # the other two authors' codes leave padded queries undefined
        logits, expected = logits[mask.bool()], expected[mask.bool()]
    # MMaDA's code leaves +1 on every visible score; it cancels in the softmax up to rounding (the next test shows it).
    atol = max(LOGITS, 2e-5) if found.family == "mmada" else LOGITS
    torch.testing.assert_close(logits, expected, atol=atol, rtol=0)


@pytest.mark.parametrize(
    "found", [pytest.param(p.values[0], id=p.id) for p in by_family() if p.values[0].family == "mmada"]
)
def test_mmada_padding_differs_only_by_the_authors_plus_one(found: Golden) -> None:
    names = found.facts["forward"]["left_padded"]
    real = found.tensor(names["attention_mask"]).bool()
    visible = (real[:, None, :, None] & real[:, None, None, :]).float()  # [batch, 1, query, key]
    theirs = visible.masked_fill(visible == 0, torch.finfo(torch.float32).min)
    ids = found.tensor(names["input_ids"])
    with torch.inference_mode():
        logits = found.model.module(ids, attention_mask=theirs, is_causal=False).logits
    torch.testing.assert_close(logits, found.tensor(names["logits"]), atol=SAME, rtol=0)
    ours = found.model.logits(ids, found.tensor(names["attention_mask"]))
    torch.testing.assert_close(logits[real], ours[real], atol=3e-5, rtol=0)  # on one machine: rounding and no more


def test_positions_of_a_padded_dream_batch_are_the_authors() -> None:
    found = golden("dream")
    names = found.facts["forward"]["left_padded"]
    assert torch.equal(
        found.model.positions(found.tensor(names["attention_mask"])), found.tensor(names["position_ids"])
    )


@pytest.mark.parametrize("found", by_family())
def test_facts_come_from_the_checkpoint(found: Golden) -> None:
    special = found.facts["special_ids"]
    assert found.model.mask_id == special["mask"]
    assert found.model.pad_id == special["pad"]
    assert found.model.eos_id == special["eos"]
    assert found.model.family.name == found.family
    assert found.model.tokenizer is None
    assert found.model.shift == (found.family == "dream")
