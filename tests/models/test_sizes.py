"""Sizes, rope theta, eps and kv heads come from the checkpoint: logits against a forward written out by hand."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from made_models import make_causal, make_dream, make_fast_dllm, make_llada, make_llada_moe, make_open_dcoder
from sinkscope.models import load


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotate(x: Tensor, theta: float) -> Tensor:
    """x [head, position, dim], each pair (i, i + dim/2) turned by position · theta^(−2i/dim)."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def mixture(w: dict[str, Tensor], name: str, normed: Tensor, chosen: int) -> Tensor:
    """normed [position, width] through its `chosen` likeliest experts, each weighed by its share of all."""
    shares = (normed @ w[name + "gate.weight"].T).softmax(-1)
    out = torch.zeros_like(normed)
    for position, row in enumerate(shares):
        for expert in row.topk(chosen).indices.tolist():
            part = {kind: w[f"{name}experts.{expert}.{kind}_proj.weight"] for kind in ("gate", "up", "down")}
            inner = torch.nn.functional.silu(part["gate"] @ normed[position]) * (part["up"] @ normed[position])
            out[position] += row[expert] * (part["down"] @ inner)
    return out


def plain_forward(
    weights: dict[str, Tensor], ids: Tensor, heads: int, kv_heads: int, theta: float, eps: float, causal: bool,
    chosen: int = 2,
) -> Tensor:  # fmt: skip
    """ids [position] → logits [position, vocab], in float64, with nothing but matrix products."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    x = w["model.embed_tokens.weight"][ids]
    layers = 1 + max(int(name.split(".")[2]) for name in w if name.startswith("model.layers."))
    for layer in range(layers):
        name = f"model.layers.{layer}."
        normed = rms(x, w[name + "input_layernorm.weight"], eps)

        def project(part: str, count: int, name: str = name, normed: Tensor = normed) -> Tensor:
            y = normed @ w[name + f"self_attn.{part}_proj.weight"].T + w.get(name + f"self_attn.{part}_proj.bias", 0)
            return y.view(len(ids), count, -1).transpose(0, 1)

        def turned(part: str, count: int, name: str = name, project: Any = project) -> Tensor:
            found = project(part, count)
            if (norm := w.get(name + f"self_attn.{part}_norm.weight")) is not None:
                found = rms(found, norm, eps)
            return rotate(found, theta)

        q, k, v = turned("q", heads), turned("k", kv_heads), project("v", kv_heads)
        k, v = k.repeat_interleave(heads // kv_heads, 0), v.repeat_interleave(heads // kv_heads, 0)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(ids), -1)
        x = x + mixed @ w[name + "self_attn.o_proj.weight"].T
        normed = rms(x, w[name + "post_attention_layernorm.weight"], eps)
        if name + "mlp.gate.weight" in w:
            x = x + mixture(w, name + "mlp.", normed, chosen)
            continue
        gate = torch.nn.functional.silu(normed @ w[name + "mlp.gate_proj.weight"].T)
        x = x + (gate * (normed @ w[name + "mlp.up_proj.weight"].T)) @ w[name + "mlp.down_proj.weight"].T
    return rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


LLAMA_NAMES = {
    "wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head", "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm", "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj", "attn_out": "self_attn.o_proj", "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj",
}  # fmt: skip


def native(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """LLaDA's names read by eye: `ff_out` is the head at the top and the down projection in a block."""
    renamed = {}
    for name, tensor in weights.items():
        parts = name.removeprefix("model.transformer.").split(".")
        if parts[0] == "blocks":
            own = "mlp.down_proj" if parts[2] == "ff_out" else LLAMA_NAMES[parts[2]]
            renamed[f"model.layers.{parts[1]}.{own}.weight"] = tensor
        else:
            renamed[f"{LLAMA_NAMES[parts[0]]}.weight"] = tensor
    return renamed


SIZES = st.fixed_dictionaries(
    {
        "heads": st.sampled_from([2, 4, 6]),
        "layers": st.integers(1, 3),
        "inner": st.sampled_from([24, 56]),
        "vocabulary": st.integers(40, 90),
        "theta": st.sampled_from([100.0, 1e4, 5e5, 1e6]),
        "eps": st.sampled_from([1e-2, 1e-5, 1e-6]),
    }
)


@pytest.mark.parametrize(
    ("family", "make"),
    [
        ("llada", make_llada),
        ("dream", make_dream),
        ("llama", make_causal),
        ("llada_moe", make_llada_moe),
        ("fast_dllm2", make_fast_dllm),
        ("open_dcoder", make_open_dcoder),
    ],
)
@settings(max_examples=6)
@given(sizes=SIZES, dim=st.sampled_from([4, 8]), grouped=st.booleans())
def test_logits_equal_a_forward_written_out(
    family: str, make: Any, sizes: dict[str, Any], dim: int, grouped: bool
) -> None:
    kv_heads = sizes["heads"] // 2 if grouped else sizes["heads"]
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder), **sizes, width=dim * sizes["heads"], kv_heads=kv_heads)
        model, stored = load(made), load_file(made / "model.safetensors")
    assert model.family.name == family
    weights = native(stored) if family == "llada" else stored
    ids = torch.randint(0, sizes["vocabulary"], (1, 17))
    expected = plain_forward(weights, ids[0], sizes["heads"], kv_heads, sizes["theta"], sizes["eps"], family == "llama")
    torch.testing.assert_close(model.logits(ids)[0].double(), expected, atol=5e-4, rtol=1e-4)


def test_tied_weights_need_no_head(tmp_path: Path) -> None:
    """iLLaDA-like checkpoints tie head and embedding, and then store the embedding only."""
    folder = make_llada(tmp_path, kv_heads=2, weight_tying=True)
    weights = load_file(folder / "model.safetensors")
    del weights["model.transformer.ff_out.weight"]
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors")
    model = load(folder)
    ids = torch.arange(9).unsqueeze(0)
    tied = native({**weights, "model.transformer.ff_out.weight": weights["model.transformer.wte.weight"]})
    expected = plain_forward(tied, ids[0], 4, 2, 5e5, 1e-5, False)
    torch.testing.assert_close(model.logits(ids)[0].double(), expected, atol=5e-4, rtol=1e-4)


def test_context_and_vocabulary_are_the_checkpoints(tmp_path: Path) -> None:
    model = load(make_llada(tmp_path, vocabulary=77, context=99))
    assert (model.vocabulary, model.context) == (77, 99)
    assert json.loads((tmp_path / "config.json").read_text())["mask_token_id"] == model.mask_id
