"""Hooks inside attention: scores, pattern and each head's result, against an eager loop of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import sinkscope as sk
from golden_sets import by_family, golden, newer_by_family, newest_by_family
from sinkscope.attention.maps import MAP_PLACES
from sinkscope.errors import CaptureError, InterventionError

D = sk.Decode
Edit = Callable[[Tensor], Tensor]
EAGER = "eager_with_edits"


@contextmanager
def eager(model: sk.Model, edits: dict[str, Edit], layer: int) -> Iterator[dict[str, Tensor]]:
    """One layer's attention as the plain loop (scores, softmax, values), its tensors kept, and edited; others run SDPA."""
    seen: dict[str, Tensor] = {}

    def at(place: str, tensor: Tensor) -> Tensor:
        seen[place] = tensor.clone()
        return edits[place](tensor) if place in edits else tensor

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float = 1.0,
                  is_causal: bool | None = None, **_: Any) -> tuple[Tensor, None]:  # fmt: skip
        if module.layer_idx != layer:
            own: tuple[Tensor, None] = sdpa_attention_forward(
                module, query, key, value, mask, scaling=scaling, is_causal=is_causal
            )
            return own
        query, key = query.to(value.dtype), key.to(value.dtype)
        share = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(share, dim=1) for part in (key, value))
        scores = query.float() @ key.float().mT * scaling
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        elif module.is_causal if is_causal is None else is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + scores.shape[-1] - scores.shape[-2])
            scores = scores.masked_fill(later, -torch.inf)
        pattern = at("pattern", at("scores", scores).softmax(-1).nan_to_num(0.0))
        out = at("head_out", pattern @ value.float())
        return out.to(query.dtype).transpose(1, 2).contiguous(), None

    AttentionInterface.register(EAGER, attention)
    AttentionMaskInterface.register(EAGER, sdpa_mask)
    configs = {id(part.config): part.config for part in model.module.modules() if hasattr(part, "config")}
    before = {key: config._attn_implementation for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation = {"": EAGER}
    try:
        yield seen
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def without_first_key(scores: Tensor) -> Tensor:
    changed = scores.clone()
    changed[..., 0] = -1e9
    return changed


def flattened(pattern: Tensor) -> Tensor:
    """Half of each row, and half spread evenly over its keys."""
    seen = (pattern > 0).float()
    return pattern / 2 + seen / seen.sum(-1, keepdim=True).clamp(min=1) / 2


def halved(out: Tensor) -> Tensor:
    changed = out.clone()
    changed[:, 0] /= 2
    return changed


EDITS: dict[str, Edit] = {"scores": without_first_key, "pattern": flattened, "head_out": halved}
ALL = [*by_family(), *newer_by_family(), *newest_by_family()]


def off(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


def ids_for(model: sk.Model) -> Tensor:
    return torch.randint(4, 50, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("found", ALL)
def test_what_a_hook_sees_and_edits_is_what_an_eager_loop_has(found: Any) -> None:
    model = found.model
    ids, layer = ids_for(model), model.config.num_hidden_layers - 1
    plain = model.logits(ids)
    seen: dict[str, Tensor] = {}
    places = [f"layers.{layer}.{place}" for place in MAP_PLACES]
    with sk.hook(model, places, lambda tensor, context: seen.__setitem__(context.place, tensor.clone())):
        assert torch.equal(model.logits(ids), plain)  # what is only looked at changes no bit
    with eager(model, {}, layer) as expected:
        model.logits(ids)
    for place in MAP_PLACES:
        torch.testing.assert_close(seen[place], expected[place], atol=1e-6, rtol=1e-6)
    for place, edit in EDITS.items():
        with eager(model, {place: edit}, layer):
            by_hand = model.logits(ids)
        with sk.hook(model, f"layers.{layer}.{place}", lambda tensor, context, edit=edit: edit(tensor)):
            hooked = model.logits(ids)
        assert off(hooked, by_hand) <= 1e-6
        assert not torch.equal(hooked, plain)


@pytest.mark.parametrize(
    "settings",
    [
        D.llada(length=8, block=4, steps=8),
        D.llada(length=8, block=4, steps=8, guidance=1.0),
        D.parallel(length=8, block=4, threshold=0.6, cache="dual"),
        D.parallel(length=8, block=4, threshold=0.6, cache=sk.SparseCache(keep=0.5, refresh=2)),
    ],
)
def test_in_the_loop_a_function_knows_step_and_groups(settings: sk.Decode) -> None:
    model, ids = golden("llada").model, torch.tensor([[5, 6, 7, 8]])
    plain, steps = sk.decode(model, ids, settings), []

    def look(pattern: Tensor, context: sk.HookContext) -> None:
        assert context.groups is not None and context.canvas is not None
        assert pattern.shape[2] == context.groups.shape[1] and pattern.shape[3] == context.canvas.shape[1]
        torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:3]))
        if context.kind == "denoise":
            steps.append(context.step)

    with sk.hook(model, "layers.1.pattern", look):
        done = sk.decode(model, ids, settings)
    assert torch.equal(done.history, plain.history)
    assert steps == list(range(len(plain.history) - 1))


def test_masked_queries_alone_can_be_kept_from_a_key() -> None:
    model, ids = golden("llada").model, torch.tensor([[5, 6, 7, 8]])
    received = []

    def hide(scores: Tensor, context: sk.HookContext) -> Tensor:
        assert context.masked is not None
        first = torch.arange(scores.shape[-1]) == 0
        return scores.masked_fill(context.masked[:, None, :, None] & first, -torch.inf)

    with sk.hook(model, "scores", hide), sk.observe(model) as seen:
        sk.decode(model, ids, D.llada(length=4, block=4, steps=4))
    received = torch.stack(seen.received)
    assert not received[:, :, :, 0, 0].any()  # of the masked group
    assert bool((received[:, :, :, 2, 0] > 0).all())  # the prompt still looks


def test_sums_and_ranks_are_of_the_edited_pattern() -> None:
    model, ids = golden("llada").model, torch.tensor([[5, 6, 7, 8]])

    def to_last(pattern: Tensor, context: sk.HookContext) -> Tensor:
        return functional.one_hot(torch.full(pattern.shape[:3], pattern.shape[3] - 1), pattern.shape[3]).float()

    with sk.hook(model, "layers.0.pattern", to_last), sk.observe(model, layers=[0]) as seen:
        model.logits(ids)
    assert seen.received[0][..., -1].eq(4).all() and not seen.received[0][..., :-1].any()


def test_a_change_in_place_counts_as_at_every_other_place() -> None:
    model, ids = golden("llada").model, torch.tensor([[5, 6, 7, 8]])

    def in_place(scores: Tensor, context: sk.HookContext) -> None:
        scores[..., 0] = -1e9

    with sk.hook(model, "layers.1.scores", lambda scores, context: without_first_key(scores)):
        expected = model.logits(ids)
    with sk.hook(model, "layers.1.scores", in_place):
        assert torch.equal(model.logits(ids), expected)
    with sk.hook(model, list(MAP_PLACES), lambda tensor, context: tensor):
        assert torch.equal(model.logits(ids), model.logits(ids))


def test_hooks_see_what_interventions_left_and_act_in_order() -> None:
    model, ids = golden("llada").model, torch.tensor([[5, 6, 7, 8]])
    seen: list[Tensor] = []
    with sk.intervene(model, sk.MaskPositions((1,))), sk.hook(model, "layers.0.scores", lambda s, c: seen.append(s)):
        model.logits(ids)
    assert seen[0][..., 1].eq(-torch.inf).all()
    order = []
    with (
        sk.hook(model, "layers.0.pattern", lambda p, c: order.append("first")),
        sk.hook(model, "layers.0.pattern", lambda p, c: order.append("second")),
        sk.hook(model, "layers.0.scores", lambda p, c: order.append("scores")),
    ):
        model.logits(ids)
    assert order == ["scores", "first", "second"]


def test_a_sink_token_stands_on_no_position_of_a_pattern() -> None:
    model, ids = golden("llada").model, torch.tensor([[5, 6, 7, 8]])
    shapes = []
    with sk.intervene(model, sk.AddSinkToken()):
        plain = model.logits(ids)
        with sk.hook(model, ["scores", "pattern"], lambda tensor, context: shapes.append(tensor.shape[-1])):
            assert torch.equal(model.logits(ids), plain)
    assert set(shapes) == {4}


def test_gradients_flow_through_maps_and_received() -> None:
    model = golden("llada").model
    states = torch.randn(1, 5, model.config.hidden_size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    kept: dict[str, Tensor] = {}
    with torch.enable_grad():
        plain = model.module(inputs_embeds=states, is_causal=False, use_cache=False).logits
        with sk.hook(model, ["layers.1.scores", "layers.1.pattern"], lambda t, c: kept.__setitem__(c.place, t)):
            logits = model.module(inputs_embeds=states, is_causal=False, use_cache=False).logits
        assert torch.equal(logits, plain)
        for tensor in kept.values():
            (found,) = torch.autograd.grad(logits.square().sum(), tensor, retain_graph=True)
            assert found.shape == tensor.shape and bool(found.any())
        (same,) = torch.autograd.grad(logits.square().sum(), states)
        (expected,) = torch.autograd.grad(plain.square().sum(), states)
    assert off(same, expected) <= 1e-5


def test_the_gradient_of_received_is_that_of_the_formula() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))

    class Attention(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v)

    q.requires_grad_()
    own = Attention()
    with sk.observe(own) as seen:
        own(q)
    (received,) = seen.received
    weights = torch.randn(received.shape, generator=torch.Generator().manual_seed(9))
    (found,) = torch.autograd.grad((received * weights).sum(), q)
    (expected,) = torch.autograd.grad((sk.attend(q, k, v, backend="reference")[1] * weights).sum(), q)
    torch.testing.assert_close(found, expected)
    with torch.no_grad(), sk.observe(own) as seen:
        own(q)
    assert not seen.received[0].requires_grad


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("layers.9.scores", "0 to 2"), ("blocks.9.attn.hook_pattern", "0 to 2"), ("layers.0.patterns", "head_out"),
        ("layers.0.attn_scores", "scores"),
    ],
)  # fmt: skip
def test_places_that_are_not_there(where: str, said: str) -> None:
    with pytest.raises(InterventionError, match=said), sk.hook(golden("llada").model, where, lambda x, c: None):
        pass


def test_names_of_transformerlens() -> None:
    model, places = golden("llada").model, []
    names = ["blocks.1.attn.hook_attn_scores", "blocks.1.attn.hook_pattern"]
    with sk.hook(model, names, lambda tensor, context: places.append((context.layer, context.place))):
        model.logits(torch.tensor([[5, 6, 7]]))
    assert places == [(1, "scores"), (1, "pattern")]


def test_a_wrong_shape_is_refused() -> None:
    model = golden("llada").model
    with (
        pytest.raises(InterventionError, match=r"Expected None or a tensor of shape \(1, 4, 3, 3\)"),
        sk.hook(model, "layers.0.pattern", lambda tensor, context: tensor[0]),
    ):
        model.logits(torch.tensor([[5, 6, 7]]))


def test_multihead_attention_is_refused() -> None:
    module = nn.MultiheadAttention(8, 2)
    x = torch.randn(3, 1, 8)
    with pytest.raises(CaptureError, match="out of reach"), sk.hook(module, "pattern", lambda t, c: None):
        module(x, x, x)
