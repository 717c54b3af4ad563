"""The lens against a computation by hand, and the last layer against the model itself."""

from __future__ import annotations

import dataclasses
from importlib import import_module

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from sinkscope.models import Model
from sinkscope.tracing.states import hidden_states, lens

MODELS = ("tiny-llama", "tiny-llada", "tiny-dream", "tiny-mmada")


def by_hand(model: Model, ids: Tensor) -> Tensor:
    """Hooks, the formula of the norm, and the head as a plain product."""
    kept: list[Tensor] = []
    module = model.module
    hooks = [
        layer.register_forward_hook(lambda _m, _i, out: kept.append(out[0] if isinstance(out, tuple) else out))
        for layer in module.model.layers
    ]
    try:
        model.logits(ids)
    finally:
        for hook in hooks:
            hook.remove()
    norm = module.model.norm
    read = []
    for state in kept:
        scaled = state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon) * norm.weight
        read.append(scaled @ module.lm_head.weight.T)
    return torch.stack(read)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_as_by_hand_and_the_last_one_exactly(name: str) -> None:
    model = sk.load(name)
    ids = torch.randint(0, model.vocabulary, (2, 19), generator=torch.Generator().manual_seed(1))
    found = lens(model, ids)
    assert found.shape == (model.config.num_hidden_layers, 2, 19, model.vocabulary)
    assert torch.equal(found[-1], model.logits(ids))
    torch.testing.assert_close(found, by_hand(model, ids).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("logits", [1, 700, 5000])
def test_parts_of_the_positions_are_the_whole(logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sk.load("tiny-dream")
    ids = torch.randint(0, model.vocabulary, (2, 19), generator=torch.Generator().manual_seed(1))
    expected, trace = by_hand(model, ids).detach(), sk.trace(model, ids, length=4, steps=4, keep=sk.Keep(lens=True))
    monkeypatch.setattr(import_module("sinkscope.tracing.states"), "AT_A_TIME", logits)
    torch.testing.assert_close(lens(model, ids), expected, atol=1e-4, rtol=1e-4)
    for one, other in zip(trace, sk.trace(model, ids, length=4, steps=4, keep=sk.Keep(lens=True)), strict=True):
        assert one.lens_probability is not None and other.lens_probability is not None
        torch.testing.assert_close(one.lens_probability, other.lens_probability, atol=1e-3, rtol=1e-3)
        assert float((one.lens_tokens == other.lens_tokens).float().mean()) > 0.99  # type: ignore[union-attr]


def test_any_other_module_is_told_in_one_sentence() -> None:
    """The lens needs to know where the layers, the final norm and the head are."""
    model = sk.load("tiny-llada")
    with pytest.raises(sk.SinkscopeError, match=r"Expected a model from sk\.load"):
        sk.lens(torch.nn.Linear(3, 3), torch.arange(4)[None])  # type: ignore[arg-type]
    strange = dataclasses.replace(model, module=torch.nn.Linear(3, 3))
    with pytest.raises(sk.SinkscopeError, match="layers, a final norm"):
        sk.lens(strange, torch.arange(4)[None])


def test_a_real_model_s_last_layer_is_the_model_s_own() -> None:
    """SmolLM2, where it is installed (extra smollm): 30 layers, tied head."""
    try:
        model = sk.load("smollm2-135m")
    except sk.SinkscopeError as error:
        pytest.skip(str(error))
    ids = model.encode("Tom has three apples.")[:, :6]
    found = sk.lens(model, ids, layers=[0, -1])
    assert torch.equal(found[-1], model.logits(ids))
    assert not torch.equal(found[0], found[1])


def test_a_choice_of_layers_and_positions_in_the_order_given() -> None:
    model = sk.load("tiny-llada")
    ids = torch.arange(4, 20)[None]
    whole = sk.lens(model, ids)
    part = sk.lens(model, ids, layers=[-1, 0], positions=[3, -1])
    torch.testing.assert_close(part, whole[[5, 0]][:, :, [3, 15]])


def test_padding_is_not_seen() -> None:
    model = sk.load("tiny-dream")
    ids = torch.arange(4, 16)[None]
    padded = torch.cat([torch.full((1, 3), model.pad_id), ids], 1)
    mask = torch.cat([torch.zeros(1, 3), torch.ones(1, 12)], 1).long()
    seen, alone = hidden_states(model, padded, mask, range(6)), hidden_states(model, ids, None, range(6))
    for layer in range(6):
        torch.testing.assert_close(seen[layer][:, 3:], alone[layer], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "words", [{"layers": [6]}, {"layers": []}, {"positions": [99]}, {"layers": ["a"]}, {"positions": [True]}]
)
def test_what_is_not_there_is_refused(words: dict[str, list[int]]) -> None:
    with pytest.raises(sk.SinkscopeError, match="Expected"):
        sk.lens(sk.load("tiny-llada"), torch.arange(4, 20)[None], **words)


def test_nothing_is_left_in_the_model() -> None:
    model = sk.load("tiny-llada")
    sk.lens(model, torch.arange(4, 20)[None])
    assert not any(part._forward_hooks for part in model.module.modules())
