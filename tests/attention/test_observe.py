"""observe() on modules that are not transformers models, and its manners: restore, nest, refuse."""

from __future__ import annotations

import pytest
import torch
from modules import HandWritten, Stack, VisionTransformer
from torch import nn

import sinkscope as sk
from golden_sets import golden
from sinkscope.errors import CaptureError


def slow_received(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    batch, positions, _ = x.shape
    q, k, _ = block.qkv(block.before(x)).view(batch, positions, 3, block.heads, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if block.causal:
        scores = scores.masked_fill(torch.ones(positions, positions).triu(1).bool(), -torch.inf)
    return scores.softmax(-1).sum(2)


@pytest.mark.parametrize("causal", [True, False])
def test_a_stack_of_blocks(causal: bool) -> None:
    module, x = Stack(causal=causal).eval(), torch.randn(2, 7, 16)
    with torch.no_grad():
        expected_out, expected = module(x), []
        inside = x
        for block in module.blocks:
            expected.append(slow_received(block, inside))
            inside = block(inside)
        with sk.observe(module) as seen:
            out = module(x)
    torch.testing.assert_close(out, expected_out, atol=1e-6, rtol=1e-5)
    assert seen.layers == [0, 1, 2]
    for received, wanted in zip(seen.received, expected, strict=True):
        torch.testing.assert_close(received[:, :, 0], wanted, atol=1e-5, rtol=0)


def test_a_vision_transformer_of_torch() -> None:
    module, picture = VisionTransformer().eval(), torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        expected = module(picture)
        with sk.observe(module) as seen:
            out = module(picture)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    assert [tuple(received.shape) for received in seen.received] == [(2, 4, 1, 17)] * 2
    for received in seen.received:
        torch.testing.assert_close(received.sum(-1), torch.full((2, 4, 1), 17.0), atol=1e-4, rtol=0)


@pytest.mark.parametrize("weights", [True, False])  # torch's slow path, and the path that it calls fast
@pytest.mark.parametrize("padded", [True, False])
def test_multihead_attention(weights: bool, padded: bool) -> None:
    module = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 6, 16)
    mask = torch.tensor([[False] * 6, [True] * 2 + [False] * 4]) if padded else None
    with torch.inference_mode():
        expected = module(x, x, x, key_padding_mask=mask, average_attn_weights=False)
        with sk.observe(module) as seen:
            out, given = module(x, x, x, key_padding_mask=mask, need_weights=weights, average_attn_weights=False)
    assert (given is not None) == weights
    torch.testing.assert_close(out, expected[0], atol=1e-5, rtol=1e-4)
    real = torch.ones(2, 6) if mask is None else (~mask).float()
    wanted = torch.einsum("bq,bhqk->bhk", real, expected[1])
    torch.testing.assert_close(seen.received[0][:, :, 0], wanted, atol=1e-5, rtol=0)


def test_masking_in_a_foreign_module_takes_effect() -> None:
    for module in (Stack(causal=False).eval(), VisionTransformer().eval()):
        x = torch.randn(1, 7, 16) if isinstance(module, Stack) else torch.randn(1, 3, 16, 16)
        with torch.inference_mode(), sk.intervene(module, sk.MaskPositions((0, 3))), sk.observe(module) as seen:
            module(x)
        for received in seen.received:
            assert not received[..., [0, 3]].any()
            assert bool((received[..., [1, 2]] > 0).all())


def test_only_what_was_asked_for() -> None:
    module, x = Stack().eval(), torch.randn(1, 5, 16)
    with torch.no_grad(), sk.observe(module, layers=[1], keep=lambda layer, received: received.max()) as seen:
        for _ in range(3):
            module(x)
    assert seen.layers == [1, 1, 1]
    assert all(kept.dim() == 0 for kept in seen.received)


def test_a_model_is_left_as_it_was_found() -> None:
    module, ids = golden("dream").model.module, golden("dream").tensor("forward.input_ids")
    before = module.config._attn_implementation
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())
    expected = golden("dream").model.logits(ids)

    def broken() -> None:
        with sk.observe(module), sk.intervene(module, sk.MaskSinks(k=2)):
            module(ids, is_causal=False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert module.config._attn_implementation == before
    assert hooks == sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())
    assert torch.equal(golden("dream").model.logits(ids), expected)


def test_nested_observers_see_the_same() -> None:
    model, ids = golden("llada").model, golden("llada").tensor("forward.input_ids")
    with sk.observe(model) as outer:
        model.logits(ids)
        with sk.observe(model, layers=[1]) as inner:
            model.logits(ids)
        model.logits(ids)
    layers = model.config.num_hidden_layers
    assert len(outer.received) == 3 * layers and len(inner.received) == 1
    assert torch.equal(outer.received[layers + 1], inner.received[0])


def test_with_transformers_generate_and_a_cache() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval()
    ids = torch.arange(1, 7)[None]
    with sk.observe(module) as seen:
        module.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert [tuple(received.shape) for received in seen.received[::2]] == [(1, 4, 1, 6), (1, 4, 1, 7), (1, 4, 1, 8)]
    sums = torch.stack([received.sum() for received in seen.received[::2]])
    torch.testing.assert_close(sums, torch.tensor([24.0, 4.0, 4.0]), atol=1e-4, rtol=0)  # 6 queries, then 1, in 4 heads


def test_nothing_caught_is_an_error() -> None:
    with pytest.raises(CaptureError, match="caught none in 1 forwards"), sk.observe(module := HandWritten()):
        module(torch.randn(1, 4, 8))


def test_two_ways_in_one_module_are_an_error() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text, self.own = golden("llada").model.module, Stack(1, 16).eval()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.own(torch.randn(1, 3, 16))
            return self.text(ids, is_causal=False).logits

    with pytest.raises(CaptureError, match="two ways"), torch.no_grad(), sk.observe(module := Both()):
        module(golden("llada").tensor("forward.input_ids"))


def test_a_skipped_layer_is_an_error() -> None:
    model = golden("llada").model
    base = model.module.base_model
    hidden = base.embed_tokens(golden("llada").tensor("forward.input_ids"))
    positions = torch.arange(hidden.shape[1])[None]
    with pytest.raises(CaptureError, match=r"layers \[1, 2\] made none"), torch.no_grad(), sk.observe(model):
        base.layers[0](hidden, position_embeddings=base.rotary_emb(hidden, positions), is_causal=False)


def test_dropout_is_an_error() -> None:
    class Dropping(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = x.unsqueeze(1)
            return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)[:, 0]

    with pytest.raises(CaptureError, match="dropout"), sk.observe(module := Dropping()):
        module(torch.randn(1, 4, 16))
