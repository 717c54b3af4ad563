"""What a module's own attention gets while someone listens, and what listening costs where gradients flow."""

from __future__ import annotations

from typing import Any

import torch
from modules import Stack
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

import sinkscope as sk

IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 10]])
PADDING = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])


def test_flash_kernels_get_a_mask_of_two_dimensions() -> None:
    seen: list[Tensor | None] = []

    def flash(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **words: Any) -> Any:
        seen.append(mask)
        whole = None if mask is None else mask.bool()[:, None, None]
        return sdpa_attention_forward(module, query, key, value, whole, **words)

    AttentionInterface.register("made_flash", flash)
    AttentionMaskInterface.register("made_flash", flash_attention_mask)
    model = sk.load("tiny-dream")
    expected = model.logits(IDS, PADDING)
    model.config._attn_implementation = "made_flash"
    settings = sk.Decode.dream(length=4, steps=4)
    with sk.intervene(model, sk.MaskSinks(k=1, layers=(0,))):  # the other layers run their own attention
        sk.decode(model, IDS, settings, attention_mask=PADDING)
    assert seen and all(mask is not None and mask.shape[0] == 2 and mask.dim() == 2 for mask in seen)
    torch.testing.assert_close(model.logits(IDS, PADDING), expected)


def test_sums_need_no_map_where_gradients_flow() -> None:
    module, x = Stack(), torch.randn(2, 7, 16)
    with sk.observe(module) as seen:
        module(x).sum().backward()
    grads = [one.grad.clone() for one in module.parameters() if one.grad is not None]
    assert set(seen.backends) == {"tiled"} and all(one.requires_grad for one in seen.received)
    module.zero_grad()
    module(x).sum().backward()
    assert all(map(torch.equal, grads, [one.grad for one in module.parameters() if one.grad is not None]))
