"""Two threads on one model never see each other's, and whatever is put into a model is taken out again."""

from __future__ import annotations

import contextvars
import gc
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import sinkscope as sk
from golden_sets import golden
from sinkscope.errors import CaptureError

SETTINGS = sk.Decode.llada(length=4, block=4, steps=4)
CHANGES = [
    (), (sk.MaskSinks(k=2),), (sk.MaskSinks(k=1, rank="as_run"),), (sk.MaskRandom(k=2, seed=3),), (sk.MaskPositions((0,)),),
    (sk.Window(3),), (sk.ZeroValues(of=sk.MaskSinks(k=2)),), (sk.MaskSinks(k=2), sk.Window(5)),
]  # fmt: skip


def untouched(module: nn.Module) -> tuple[Any, ...]:
    """What a `with` puts into a module."""
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in module.modules()]
    return getattr(getattr(module, "config", None), "_attn_implementation", None), hooks


def ids_of(number: int) -> torch.Tensor:
    return torch.randint(10, 90, (1, 6), generator=torch.Generator().manual_seed(number))


def job(model: sk.Model, number: int) -> list[torch.Tensor]:
    """A trace under some intervention, a plain decode, and an observed forward."""
    ids, changes = ids_of(number), CHANGES[number % len(CHANGES)]
    keep = sk.Keep(dtype=torch.float32, hidden_norms=True, value_norms=True)
    trace = sk.trace(model, ids, SETTINGS, interventions=changes, keep=keep)
    with sk.observe(model, layers=[1]) as seen:
        logits = model.logits(ids)
    plain = sk.decode(model, ids, SETTINGS)
    return [trace.received, trace.hidden_norms, trace.value_norms, trace.canvas, logits, *seen.received, plain.history]


def test_eight_threads_give_what_each_gives_alone() -> None:
    model = sk.load("tiny-llada")
    before = untouched(model.module)
    alone = [job(model, number) for number in range(20)]
    ready = threading.Barrier(8)

    def work(thread: int) -> list[tuple[int, list[torch.Tensor]]]:
        ready.wait()
        order = [(thread * 7 + step) % 20 for step in range(20)]
        return [(number, job(model, number)) for number in order]

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(work, range(8)))
    assert sum(map(len, done)) == 160
    for number, found in itertools.chain(*done):
        for here, there in zip(found, alone[number], strict=True):
            assert torch.equal(here, there)
    assert untouched(model.module) == before


def test_threads_on_a_plain_module() -> None:
    module = nn.Sequential(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)).eval()
    before = untouched(module)
    inputs = [torch.randn(1, 4 + number, 16) for number in range(4)]

    def run(number: int) -> list[torch.Tensor]:
        with torch.inference_mode(), sk.intervene(module, sk.MaskPositions((number % 3,))), sk.observe(module) as seen:
            out = module(inputs[number])
        return [out, *seen.received]

    alone = [run(number) for number in range(4)]
    ready = threading.Barrier(4)

    def work(number: int) -> list[list[torch.Tensor]]:
        ready.wait()
        return [run(number) for _ in range(40)]

    with ThreadPoolExecutor(4) as pool:
        for number, done in enumerate(pool.map(work, range(4))):
            for found in done:
                assert all(map(torch.equal, found, alone[number])) and len(found) == 2
    assert untouched(module) == before


def test_another_thread_is_neither_heard_nor_changed() -> None:
    model = golden("llada").model
    plain = model.logits(ids_of(1))
    with sk.intervene(model, sk.MaskPositions((0, 1))), sk.observe(model) as seen:
        with ThreadPoolExecutor(1) as pool:
            assert torch.equal(pool.submit(model.logits, ids_of(1)).result(), plain)
        assert not seen.received
        assert not torch.equal(model.logits(ids_of(1)), plain)
        assert len(seen.received) == model.config.num_hidden_layers


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_thread_that_runs_meanwhile_keeps_the_models_own_attention(implementation: str) -> None:
    model = golden("dream").model
    ids, mask = ids_of(1).expand(2, -1), torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    try:
        model.module.set_attn_implementation(implementation)
        plain = model.logits(ids, mask)
        with sk.intervene(model, sk.MaskSinks(k=0)) as active, ThreadPoolExecutor(1) as pool:
            assert torch.equal(model.logits(ids, mask), plain)  # a no-op, in its own thread
            assert torch.equal(pool.submit(model.logits, ids, mask).result(), plain)
        assert active.effect.keys == 0 and model.config._attn_implementation == implementation
    finally:
        model.module.set_attn_implementation("sdpa")


@pytest.mark.parametrize("plain", [True, False])
def test_a_pool_started_inside_is_told(plain: bool) -> None:
    module: Any = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval() if plain else golden("llada").model
    x = torch.randn(1, 4, 16) if plain else ids_of(1)
    run = module if plain else module.logits
    with pytest.raises(CaptureError, match="inside each thread"), ThreadPoolExecutor(2) as pool, sk.observe(module):
        pool.submit(run, x).result()


def test_a_copied_context_serves_one_thread() -> None:
    model = golden("llada").model
    before = untouched(model.module)
    with sk.observe(model) as seen:
        model.logits(ids_of(1))
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1) as pool, pytest.raises(CaptureError, match="of its own in each thread"):
            pool.submit(context.run, model.logits, ids_of(1)).result()
    assert len(seen.received) == model.config.num_hidden_layers
    assert untouched(model.module) == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_withs_may_end_in_any_order(order: tuple[int, ...]) -> None:
    model = golden("llada").model
    before, plain = untouched(model.module), model.logits(ids_of(1))
    opened = [
        sk.intervene(model, sk.MaskPositions((0,))),
        sk.intervene(model.module.base_model, sk.MaskPositions((1,))),
        sk.observe(model),
    ]
    for one in opened:
        one.__enter__()
    hidden = {0, 1}
    for place in order:
        with sk.observe(model) as seen:
            model.logits(ids_of(1))
        for key in range(3):
            assert bool((seen.received[0][..., key] == 0).all()) == (key in hidden)
        opened[place].__exit__(None, None, None)
        hidden.discard(place)
    assert untouched(model.module) == before
    assert torch.equal(model.logits(ids_of(1)), plain)


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_plain_modules_may_end_in_any_order(first_out: int) -> None:
    modules = [nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval() for _ in range(2)]
    x, before = torch.randn(1, 5, 16), [untouched(module) for module in modules]
    with torch.inference_mode():
        plain = [module(x) for module in modules]
        opened = [sk.intervene(module, sk.MaskPositions((0,))) for module in modules]
        for one in opened:
            one.__enter__()
        changed = [module(x) for module in modules]
        opened[first_out].__exit__(None, None, None)
        assert torch.allclose(modules[first_out](x), plain[first_out])
        assert torch.equal(modules[1 - first_out](x), changed[1 - first_out])
        opened[1 - first_out].__exit__(None, None, None)
        for module, out, was in zip(modules, plain, before, strict=True):
            assert torch.allclose(module(x), out) and untouched(module) == was


def test_generators_that_are_dropped_or_closed_elsewhere() -> None:
    model = golden("llada").model
    before, plain = untouched(model.module), model.logits(ids_of(1))

    def walk() -> Iterator[torch.Tensor]:
        with sk.intervene(model, sk.MaskPositions((0,))):
            while True:
                yield model.logits(ids_of(1))

    dropped = walk()
    assert not torch.equal(next(dropped), plain)
    del dropped
    gc.collect()
    assert untouched(model.module) == before

    moved = walk()
    next(moved)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(moved.close).result()  # ends its `with` in a context that never knew of it
    assert untouched(model.module) == before
    with sk.observe(model) as seen:
        assert torch.allclose(model.logits(ids_of(1)), plain, atol=1e-3)
    assert all(bool((received[..., 0] > 0).all()) for received in seen.received)


class Interrupted(nn.Module):
    """Ctrl-C between two attention calls, if asked."""

    stop = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        if self.stop:
            raise KeyboardInterrupt
        return nn.functional.scaled_dot_product_attention(x, x, x)


@contextmanager
def interrupted(module: Interrupted, x: torch.Tensor) -> Iterator[None]:
    module.stop = True
    with pytest.raises(KeyboardInterrupt):
        module(x)
    module.stop = False
    yield


def test_ctrl_c_inside_a_forward() -> None:
    module, x = Interrupted().eval(), torch.randn(1, 2, 5, 4)
    before, plain = untouched(module), module(x)
    with sk.observe(module) as seen, interrupted(module, x):
        module(x)
    assert seen.layers == [0, 0, 1]  # the next forward counts anew
    module.stop = True
    with pytest.raises(KeyboardInterrupt), sk.observe(module):
        module(x)
    module.stop = False
    assert untouched(module) == before and torch.equal(module(x), plain)
    assert torch.overrides._get_current_function_mode() is None


def test_the_users_choice_of_attention_inside_a_with_stays() -> None:
    model = golden("mmada").model
    try:
        with sk.observe(model):
            model.logits(ids_of(1))
            model.module.set_attn_implementation("eager")
        assert model.config._attn_implementation == "eager"
    finally:
        model.module.set_attn_implementation("sdpa")
