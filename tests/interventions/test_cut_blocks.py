"""A cut in shares of the prompt, where a block-causal decoder reads the prompt in whole blocks first."""

from __future__ import annotations

import pytest
import torch

import sinkscope as sk
from sinkscope.decoding import resolve_settings


@pytest.mark.parametrize("cache", [None, "exact"])
@pytest.mark.parametrize("prompt", [6, 8, 11])
def test_shares_of_a_prompt_that_is_not_whole_blocks(prompt: int, cache: str | None) -> None:
    model = sk.load("tiny-sdar")
    settings = resolve_settings(model.defaults, model, prompt, {"length": 4, "cache": cache})
    ids = torch.arange(5, 5 + prompt)[None]
    with sk.intervene(model, sk.CutContext(0.0, 0.5), record=True) as active:
        sk.decode(model, ids, settings)
    assert active.masked is not None
    for masked in active.masked:  # [batch, head, key]
        cut = min(prompt // 2, masked.shape[-1])
        assert masked[..., :cut].all() and not masked[..., cut:].any()
