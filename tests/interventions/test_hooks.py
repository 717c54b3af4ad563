"""Hooks on activations: the same tensors as torch's own hooks, in every decoder, and no trace of them afterwards."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from golden_sets import NEWER, NEWEST, golden, newer, newest
from made_models import make_causal, make_llada
from sinkscope.errors import InterventionError
from sinkscope.interventions.hooks import PLACES
from sinkscope.models import pad

D = sk.Decode
DECODERS = [
    ("llada", D.llada(length=8, block=4, steps=8)),
    ("llada", D.llada(length=8, block=4, steps=8, guidance=1.0)),
    ("llada", D.llada(length=8, block=4, steps=4, temperature=0.7, seed=3)),
    ("llada", D.parallel(length=8, block=4, threshold=0.6, cache="prefix")),
    ("llada", D.parallel(length=8, block=4, factor=1.2, cache="dual")),
    ("llada", D.parallel(length=8, block=4, threshold=0.6, cache=sk.SparseCache(keep=0.5, refresh=2))),
    ("mmada", D.mmada(length=8, block=4, steps=8)),
    ("dream", D.dream(length=8, steps=8, algorithm="entropy", temperature=0.0)),
    ("dream", D.parallel(length=8, block=4, threshold=0.6, cache="dual")),
    ("sdar", D.sdar(length=8, block=4, steps=4, temperature=0.0)),
    ("llada2", D.llada2(length=8, block=4, steps=4)),
    ("llada2", D.llada21(length=8, block=4)),
    ("a2d", D.mdlm(length=8, block=4, steps=8)),
    ("a2d", D.bd3lm(length=8, block=4, steps=8)),
    ("nemotron_labs_diffusion", D.nemotron(length=8, block=4, stop="never")),
    ("nemotron_labs_diffusion", D.nemotron(length=8, block=4, mode="self_speculation", stop="never")),
    ("wedlm", D.wedlm(length=8, block=4, threshold=0.6)),
    ("rnd1", D.rnd1(length=8, steps=8)),
    ("causal", D.autoregressive(length=8)),
]  # fmt: skip
NAMED = [pytest.param(*each, id=f"{each[0]}-{number}") for number, each in enumerate(DECODERS)]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> sk.Model:
    return sk.load(make_causal(tmp_path_factory.mktemp("causal"), eos_token_id=2, pad_token_id=0))


@pytest.fixture(scope="module")
def models(causal: sk.Model) -> Any:
    sets = {**dict.fromkeys(NEWER, newer), **dict.fromkeys(NEWEST, newest)}
    return lambda name: causal if name == "causal" else sets.get(name, golden)(name).model


def batch(model: sk.Model) -> tuple[Tensor, Tensor]:
    """Two prompts of different length."""
    below = 60 if (model.mask_id or 60) < 10 else min(model.mask_id or 60, 60)
    return pad(
        [torch.randint(4, below, (1, size), generator=torch.Generator().manual_seed(size)) for size in (4, 6)], model
    )


def untouched(model: sk.Model) -> Any:
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.module.modules()]
    return model.config._attn_implementation, hooks


def same(activation: Tensor, context: sk.HookContext) -> Tensor:
    return activation.clone()


@pytest.mark.parametrize(("name", "settings"), NAMED)
def test_writing_its_own_input_back_is_the_identity(models: Any, name: str, settings: sk.Decode) -> None:
    model = models(name)
    ids, mask = (part[-1:] if settings.mode == "self_speculation" else part for part in batch(model))  # it takes one
    before, plain = untouched(model), sk.decode(model, ids, settings, attention_mask=mask)
    steps: list[tuple[int, int]] = []

    def look(activation: Tensor, context: sk.HookContext) -> None:
        forward, (rows, width) = context.forward, activation.shape[:2]
        assert forward is not None and context.groups is not None and context.canvas is not None
        assert (rows, width) == tuple(context.groups.shape) and context.share is not None and 0 <= context.share <= 1
        assert width == context.columns.stop - context.columns.start and len(context.canvas) == rows
        found = context.sinks
        assert found is None if context.step == 0 else found is not None or context.kind != "denoise"
        if context.kind == "denoise":
            steps.append((context.step, context.layer))

    with sk.hook(model, list(PLACES), same), sk.hook(model, ["resid_pre", "z"], look):
        done = sk.decode(model, ids, settings, attention_mask=mask)
    assert torch.equal(done.history, plain.history) and done.forwards == plain.forwards
    layers = range(model.config.num_hidden_layers)
    assert steps == [(step, layer) for step in range(len(plain.history) - 1) for layer in layers for _ in range(2)]
    assert untouched(model) == before


@pytest.mark.parametrize("name", ["llada", "dream", "llada2", "sdar", "causal"])
def test_the_same_tensors_as_torchs_own_hooks(models: Any, name: str) -> None:
    model = models(name)
    ids = batch(model)[0]
    layer: Any = model.module.base_model.layers[1]
    parts = {"attn_out": layer.self_attn, "mlp_out": layer.mlp, "resid_post": layer}
    parts |= {part: getattr(layer.self_attn, f"{part}_proj") for part in "qkv"}
    seen: dict[str, Tensor] = {}

    def put(place: str) -> Any:
        def keep(_: Any, __: Any, output: Any) -> None:
            seen[place] = output[0] if isinstance(output, tuple) else output

        return keep

    removers = [part.register_forward_hook(put(place)) for place, part in parts.items()]
    removers += [
        layer.register_forward_pre_hook(lambda _, args: seen.__setitem__("resid_pre", args[0])),
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: seen.__setitem__("z", args[0])),
    ]
    plain = model.logits(ids)
    for remover in removers:
        remover.remove()
    found: dict[str, Tensor] = {}
    with sk.hook(model, [f"layers.1.{place}" for place in PLACES], lambda x, c: found.__setitem__(c.place, x)):
        assert torch.equal(model.logits(ids), plain)
    assert found.keys() == seen.keys() == set(PLACES)
    for place, activation in found.items():
        assert torch.equal(activation.flatten(2), seen[place]) and activation.dim() == (4 if len(place) == 1 else 3)
    heads = [model.config.num_attention_heads, model.config.num_key_value_heads]
    assert [found[place].shape[2] for place in "qkvz"] == [heads[0], heads[1], heads[1], heads[0]]


@pytest.mark.parametrize("place", PLACES)
def test_what_a_hook_returns_takes_the_activations_place(models: Any, place: str) -> None:
    model = models("llada")
    ids, layer = batch(model)[0], model.module.base_model.layers[0]
    target: Any = {
        "attn_out": "self_attn",
        "mlp_out": "mlp",
        "resid_pre": "",
        "resid_post": "",
        "z": "self_attn.o_proj",
    }
    part = layer.get_submodule(target.get(place, f"self_attn.{place}_proj"))

    def out(_: Any, __: Any, output: Any) -> Any:
        return (output[0] * 2, *output[1:]) if isinstance(output, tuple) else output * 2

    remover = (
        part.register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:])) if place in ("resid_pre", "z")
        else part.register_forward_hook(out)
    )  # fmt: skip
    expected = model.logits(ids)
    remover.remove()
    with sk.hook(model, f"blocks.0.{'attn.' if len(place) == 1 else ''}hook_{place}", lambda x, context: x * 2):
        assert torch.equal(model.logits(ids), expected)
    assert not torch.equal(model.logits(ids), expected)


def test_hooks_act_in_the_order_in_which_they_were_entered(models: Any) -> None:
    model = models("llada")
    ids, seen = batch(model)[0], []
    with (
        sk.hook(model, "layers.0.resid_post", lambda x, _: torch.ones_like(x)),
        sk.hook(model, "layers.0.resid_post", lambda x, _: seen.append(x) or x + 1),
        sk.hook(model, "layers.1.resid_pre", lambda x, _: seen.append(x)),
    ):
        model.logits(ids)
    assert [float(x.unique()) for x in seen] == [1, 2]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_taken_out_in_any_order_and_on_error(models: Any, order: tuple[int, ...]) -> None:
    model = models("llada")
    ids, before = batch(model)[0], untouched(model)
    plain = model.logits(ids)
    opened = [
        sk.hook(model, "resid_post", same),
        sk.hook(model.module.base_model, "z", same),
        sk.intervene(model, sk.Window(1)),
    ]
    for one in opened:
        one.__enter__()
    model.logits(ids)
    for number in order:
        opened[number].__exit__(None, None, None)
    assert untouched(model) == before and torch.equal(model.logits(ids), plain)
    with pytest.raises(ZeroDivisionError), sk.hook(model, "resid_post", lambda x, _: x / (1 // 0)):
        model.logits(ids)
    assert untouched(model) == before and torch.equal(model.logits(ids), plain)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("resid_mid", "resid_pre, attn_out"), ("layers.9.q", "0 to 2"), ("blocks.7.hook_z", "0 to 2"),
        ("layers.q", "got 'layers.q'"), ([], "or a list"), (3, "got 3"), (["q", None], "or a list"),
        ("layers.-1.q", "got 'layers.-1.q'"),
    ],
)  # fmt: skip
def test_a_place_that_is_not_there_is_refused(models: Any, where: Any, said: str) -> None:
    model = models("llada")
    before = untouched(model)
    with pytest.raises(InterventionError, match=said) as caught, sk.hook(model, where, same):
        pass
    assert "\n" not in str(caught.value) and untouched(model) == before


def test_parts_and_results_of_another_kind_are_refused(models: Any) -> None:
    model = models("llada")
    with pytest.raises(InterventionError, match="list of layers"), sk.hook(torch.nn.Linear(2, 2), "q", same):
        pass
    with pytest.raises(InterventionError, match="function"), sk.hook(model, "q", "same"):  # type: ignore[arg-type]
        pass
    for wrong in (lambda x, _: x[:, :1], lambda x, _: 3):
        with pytest.raises(InterventionError, match="of shape"), sk.hook(model, "q", wrong):
            model.logits(batch(model)[0])


def test_groups_canvas_and_columns_are_the_decoders(models: Any) -> None:
    model = models("llada")
    ids, mask = batch(model)
    settings = D.parallel(length=8, block=4, threshold=0.6, cache="dual")
    seen = []
    with sk.hook(
        model, "layers.0.resid_pre", lambda x, c: seen.append((c.step, c.columns, c.masked, c.prompt, c.canvas))
    ):
        done = sk.decode(model, ids, settings, attention_mask=mask)
    for step, columns, masked, prompt, canvas in seen:
        assert torch.equal(canvas, done.history[step])
        assert torch.equal(masked, (done.history[step] == model.mask_id)[:, columns])
        assert not bool((masked & prompt).any())
    assert seen[0][3].sum() == mask.sum() and seen[1][1] != seen[0][1]


@pytest.mark.parametrize("name", ["llada", "causal"])
def test_sinks_of_the_last_step_are_those_of_the_trace(name: str) -> None:
    model = sk.load("tiny-llada" if name == "llada" else "tiny-llama")
    words: dict[str, Any] = {"length": 12, "keep": sk.Keep(dtype=torch.float32)}
    plain = sk.trace(model, "Tom has 3 apples.", **words)
    found: dict[tuple[int, int], Tensor] = {}

    def ask(activation: Tensor, context: sk.HookContext) -> None:
        if context.head_sinks is not None:
            found[context.step, context.layer] = context.head_sinks

    with sk.hook(model, "resid_post", ask):
        traced = sk.trace(model, "Tom has 3 apples.", **words)
    assert torch.equal(plain.received, traced.received) and torch.equal(plain.canvas, traced.canvas)
    assert len(found) == (plain.steps - 1) * plain.layers and any(bool(marks.any()) for marks in found.values())
    table = plain.sinks(sk.Threshold(3, unit="uniform")) if name == "llada" else None
    for (step, layer), marks in found.items():
        assert marks.shape[-1] <= plain.positions
        if table is not None:
            rows = table.filter((table["step"] == step - 1) & (table["layer"] == layer))
            expected = set(zip(rows["head"], rows["position"], strict=True))
            assert {(head, key) for head, key in marks[0].nonzero().tolist()} == expected


def test_asking_late_for_sinks_is_told(models: Any) -> None:
    model = models("llada")
    late = sk.hook(model, "resid_post", lambda x, context: context.sinks if context.step == 3 else None)
    with pytest.raises(InterventionError, match="from the first step on"), late:
        sk.decode(model, batch(model)[0], D.llada(length=8, block=4, steps=8))


def test_with_traces_interventions_padding_and_guidance_at_once(models: Any) -> None:
    model = models("llada")
    ids, mask = batch(model)
    settings = D.llada(length=8, block=4, steps=8, guidance=0.5)
    words: dict[str, Any] = {
        "attention_mask": mask, "interventions": [sk.MaskSinks(k=1)],
        "keep": sk.Keep(dtype=torch.float32, hidden_norms=True, value_norms=True, lens=True),
    }  # fmt: skip
    plain = sk.trace(model, ids, settings, **words)
    with sk.hook(model, list(PLACES), same):
        hooked = sk.trace(model, ids, settings, **words)
    for one, other in zip(plain, hooked, strict=True):
        for field in ("received", "canvas", "hidden_norms", "value_norms", "lens_tokens"):
            assert torch.equal(getattr(one, field), getattr(other, field))
    with sk.hook(model, "layers.0.resid_pre", lambda x, _: x * 0.5):
        halved = sk.trace(model, ids, settings, **words)
    assert torch.allclose(halved[0].hidden_norms[0, 0], plain[0].hidden_norms[0, 0] / 2)


def test_two_threads_never_see_each_others_hooks() -> None:
    model = sk.load("tiny-llada")
    settings, before = D.llada(length=4, block=4, steps=4), untouched(model)
    prompts = [torch.randint(10, 90, (1, 6), generator=torch.Generator().manual_seed(number)) for number in range(8)]

    def job(number: int) -> list[Tensor]:
        seen: list[Tensor] = []
        with sk.hook(model, "resid_post", lambda x, c: seen.append(c.canvas.clone()) or x * (1 + number / 8)):
            done = sk.decode(model, prompts[number], settings)
        return [done.history, *seen]

    alone = [job(number) for number in range(8)]
    ready = threading.Barrier(4)

    def work(thread: int) -> list[tuple[int, list[Tensor]]]:
        ready.wait()
        return [(number, job(number)) for number in [(thread * 3 + step) % 8 for step in range(8)]]

    with ThreadPoolExecutor(4) as pool:
        for number, found in itertools.chain(*pool.map(work, range(4))):
            assert len(found) == len(alone[number]) and all(map(torch.equal, found, alone[number]))
    with sk.hook(model, "resid_post", lambda x, _: x * 2), ThreadPoolExecutor(1) as pool:
        plain = pool.submit(model.logits, prompts[0]).result()
        assert not torch.equal(model.logits(prompts[0]), plain)
    assert torch.equal(model.logits(prompts[0]), plain) and untouched(model) == before


def test_a_model_wrapped_by_another_module(tmp_path: Path) -> None:
    model = sk.load(make_llada(tmp_path))

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model.module

        def forward(self, ids: Tensor) -> Any:
            return self.inner(ids, is_causal=False).logits

    wrapped, ids, seen = Wrapped(), batch(model)[0], []
    with torch.inference_mode(), sk.hook(wrapped, "layers.1.z", lambda x, c: seen.append((c.step, x.shape))):
        wrapped(ids)
    assert seen == [(None, (2, 6, 4, 8))]
