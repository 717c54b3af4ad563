"""DiffusionGemma's own generate, on a tiny random one: the trace is what its decoder was given and paid."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sinkscope as sk

transformers = pytest.importorskip("transformers")
PROMPT, CANVAS, STEPS = 11, 6, 3


@pytest.fixture(scope="module")
def gemma() -> Any:
    torch.manual_seed(0)
    text = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1,
        "max_position_embeddings": 128, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16,
    }  # fmt: skip
    vision = {
        "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    config = transformers.DiffusionGemmaConfig(
        text_config=text,
        vision_config=vision,
        canvas_length=CANVAS,
        image_token_id=63,
        boi_token_id=62,
        eoi_token_id=61,
    )
    return transformers.DiffusionGemmaForBlockDiffusion(config).eval()


@pytest.fixture(scope="module")
def model(gemma: Any) -> sk.Model:
    return sk.wrap(gemma, family="diffusion_gemma")


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return torch.randint(3, 60, (1, PROMPT), generator=torch.Generator().manual_seed(1))


def test_its_own_generate_is_traced_step_by_step(gemma: Any, model: sk.Model, ids: Tensor) -> None:
    torch.manual_seed(5)
    plain = gemma.generate(ids, max_new_tokens=2 * CANVAS, max_denoising_steps=STEPS).sequences
    words = {"length": 2 * CANVAS, "steps": STEPS, "seed": 5, "stop": "never"}
    made = sk.trace(model, ids, keep=sk.Keep(dtype=torch.float32), **words)
    assert isinstance(made, sk.Trace) and made.received is not None
    assert torch.equal(made.canvas[-1:], plain)  # listening changed nothing
    blocks = made.blocks.tolist()
    assert blocks[0] == [PROMPT, PROMPT + CANVAS] and blocks[-1] == [PROMPT + CANVAS, PROMPT + 2 * CANVAS]
    assert 2 <= made.steps <= 2 * STEPS and made.layers == 2 and made.heads_count == 4
    total = made.received.sum((-2, -1))
    assert torch.allclose(total, torch.full_like(total, CANVAS), atol=1e-4)  # every query of the canvas pays 1
    for step, (start, stop) in enumerate(blocks):
        assert torch.equal(made.canvas[step, :start], plain[0, :start])
        assert float(made.received[step, ..., stop:].sum()) == 0  # what is not there yet receives nothing
    assert float(made.received[0, 0, ..., : PROMPT - 8].sum()) == 0  # beyond the window of a sliding layer
    assert float(made.received[0, 1, ..., : PROMPT - 8].sum()) > 0


def test_what_is_paid_is_the_softmax_of_the_decoder_itself(gemma: Any, model: sk.Model, ids: Tensor) -> None:
    """Against transformers' eager attention weights of the same forwards."""
    found: list[list[Tensor]] = []

    def note(module: Any, args: Any, output: Any) -> None:
        weights = output[1]  # [batch, head, query, key]
        found[-1].append(weights[0].sum(1))

    decoder = gemma.model.decoder
    hooks = [layer.self_attn.register_forward_hook(note) for layer in decoder.layers]
    hooks.append(decoder.register_forward_pre_hook(lambda *_: found.append([])))
    before = gemma.config._attn_implementation
    gemma.set_attn_implementation("eager")
    try:
        torch.manual_seed(6)
        gemma.generate(ids, max_new_tokens=CANVAS, max_denoising_steps=STEPS)
    finally:
        gemma.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    words = {"length": CANVAS, "steps": STEPS, "seed": 6, "stop": "never"}
    made = sk.trace(model, ids, keep=sk.Keep(dtype=torch.float32), **words)
    assert made.received is not None and made.steps == len(found)
    for step, layers in enumerate(found):
        for layer, weights in enumerate(layers):
            keys = weights.shape[-1]
            mine = made.received[step, layer].sum(1)[:, PROMPT + CANVAS - keys : PROMPT + CANVAS]
            assert torch.allclose(mine, weights, atol=5e-5)


def test_the_trace_has_sinks_and_survives_a_file(model: sk.Model, ids: Tensor, tmp_path: Any) -> None:
    made = sk.trace(model, ids, length=2 * CANVAS, steps=STEPS)
    again = sk.Trace.load(made.save(tmp_path / "gemma.trace"))
    assert torch.equal(again.canvas, made.canvas) and again.settings == made.settings
    assert again.heads().height == 8 and again.sinks() is not None
    with pytest.raises(sk.SinkscopeError, match="diffusion_gemma decoding"):
        sk.decode(sk.load("tiny-llada"), ids, made.settings)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"settings": sk.Decode.llada(length=8)}, "Decode.diffusion_gemma"),
        ({"no_such_word": 3}, "no_such_word"),
        ({"steps": 0}, "steps"),
        ({"keep": sk.Keep(budget=10)}, "budget"),
    ],
)
def test_what_it_cannot_do_is_refused(
    gemma: Any, model: sk.Model, ids: Tensor, words: dict[str, Any], match: str
) -> None:
    with pytest.raises(sk.SinkscopeError, match=match):
        sk.trace(model, ids, **{"length": CANVAS, **words})
    with pytest.raises(sk.SinkscopeError, match="without a tokenizer"):
        sk.trace(model, "text")
    assert not gemma.model.decoder._forward_pre_hooks
