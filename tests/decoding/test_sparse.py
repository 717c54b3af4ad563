"""The sparse cache: its two ends are the decoders that it stands between, and what it keeps is what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import sinkscope as sk
from sinkscope.attention.forward import Forward, forward_context, seeded
from sinkscope.decoding import decode
from sinkscope.decoding.caches import CacheStep
from sinkscope.decoding.caches.forwards import PolicyForwards
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.forwards import Forwards
from sinkscope.models import Model, load
from sinkscope.models.model import pad

WAYS = ("received", "sinks", "no_sinks", "recent", "random")
PROMPTS = [problem.prompt for problem in sk.tasks.problems("arithmetic", n=3, seed=5)]


@pytest.fixture(scope="module")
def model() -> Model:
    return load("tiny-llada")


def batch(model: Model, count: int = 1) -> tuple[Tensor, Tensor]:
    return pad([model.encode(prompt) for prompt in PROMPTS[:count]], model)


def settings(**words: object) -> sk.Decode:
    return replace(sk.Decode.llada(length=16, block=8, steps=16), cache=sk.SparseCache(**words))  # type: ignore[arg-type]


@pytest.mark.parametrize("per", ["head", "layer"])
@pytest.mark.parametrize("by", WAYS)
def test_all_keys_kept_is_the_dual_cache(model: Model, by: str, per: str) -> None:
    ids, mask = batch(model, 3)
    dual = decode(model, ids, replace(settings(), cache="dual"), mask)
    sparse = decode(model, ids, settings(keep=1.0, by=by, per=per), mask)
    assert torch.equal(dual.history, sparse.history)


@pytest.mark.parametrize("by", ["received", "recent"])
def test_all_keys_kept_and_refreshed_at_every_step_is_no_cache(model: Model, by: str) -> None:
    ids, mask = batch(model, 3)
    plain = decode(model, ids, replace(settings(), cache=None), mask)
    assert torch.equal(plain.history, decode(model, ids, settings(keep=1.0, by=by, refresh=1), mask).history)
    # With a refresh at every step nothing is ever read from what was kept.
    assert torch.equal(plain.history, decode(model, ids, settings(keep=0.1, by=by, refresh=1), mask).history)


@pytest.mark.parametrize("blocks", [1, "all"])
@pytest.mark.parametrize("by", WAYS)
def test_a_padded_batch_is_one_by_one(model: Model, by: str, blocks: int | str) -> None:
    ids, mask = batch(model, 3)
    wanted = settings(keep=0.3, by=by, blocks=blocks)
    together = decode(model, ids, wanted, mask).tokens[:, ids.shape[1] :]
    for row, prompt in enumerate(PROMPTS):
        alone = model.encode(prompt)
        assert torch.equal(decode(model, alone, wanted).tokens[0, alone.shape[1] :], together[row])


@pytest.mark.parametrize("by", WAYS)
def test_a_trace_sees_the_kept_keys_and_no_others(model: Model, by: str) -> None:
    wanted = settings(keep=0.25, by=by)
    untraced = decode(model, model.encode(PROMPTS[0]), wanted)
    trace = sk.trace(model, PROMPTS[0], wanted)
    assert torch.equal(trace.canvas[-1], untraced.tokens[0])
    assert trace.received is not None
    drawn = trace.received.float().sum(3)  # [step, layer, head, key]
    queries = trace.queries.sum(1)
    torch.testing.assert_close(
        drawn.sum(-1), queries[:, None, None].expand_as(drawn.sum(-1)).float(), atol=0.05, rtol=0
    )
    outside = trace.positions - 8
    for step in range(trace.steps):
        seen = (drawn[step] > 0).sum(-1)
        if step % 8:
            assert int(queries[step]) == 8
            assert int(seen.max()) <= 8 + -(-outside // 4)
        else:
            assert int(queries[step]) == trace.positions


@pytest.mark.parametrize(("blocks", "forwards"), [(1, 14), (2, 15)])
def test_what_keys_receive_between_refreshes_is_a_plain_softmax_over_the_kept(
    model: Model, blocks: int, forwards: int
) -> None:
    from sinkscope.attention.call import Call, CallResult, Tap
    from sinkscope.attention.patch import patched

    class Check(Tap):
        count = 0

        def needs_sums_fused(self, call: Call) -> bool:
            return True

        def take(self, call: Call, outcome: CallResult) -> None:
            assert call.forward is not None and call.forward.kept is not None
            found = call.forward.kept(call.layer)
            if found is None:
                return
            keys, seen = found.keys, found.seen
            for head in range(call.q.shape[1]):
                columns = seen[0, head].nonzero()[:, 0]
                scores = call.q[0, head] @ keys[0, head, columns].T * call.q.shape[-1] ** -0.5
                sums = scores.softmax(-1).sum(0)
                torch.testing.assert_close(outcome.received[0, head].sum(0)[columns], sums, atol=1e-5, rtol=1e-4)
            Check.count += 1

    with patched(model.module, Check()):
        decode(model, model.encode(PROMPTS[0]), settings(keep=0.25, blocks=blocks))
    assert Check.count == forwards * model.config.num_hidden_layers


class OverwritingLayer(DynamicLayer):
    """Keys and values of the whole canvas, of which each forward replaces its own window."""

    def __init__(self, filled: Any, window: tuple[int, int]) -> None:
        super().__init__()
        self.lazy_initialization(filled.keys, filled.values)
        self.keys, self.values, self.window = filled.keys, filled.values, window

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **words: Any) -> tuple[Tensor, Tensor]:
        self.keys[..., slice(*self.window), :] = key_states
        self.values[..., slice(*self.window), :] = value_states
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[-2], 0


def canvas_of(tokens: Tensor, prompt: int) -> Canvas:
    real = torch.ones_like(tokens, dtype=torch.bool)
    given = torch.arange(tokens.shape[1]).expand_as(tokens) < prompt
    return Canvas(tokens, real, given, -1, [prompt] * len(tokens), tokens.shape[1] - prompt)


@torch.inference_mode()
@pytest.mark.parametrize("shift", [False, True])
def test_one_look_for_several_blocks_is_a_dual_cache_that_lives_on(model: Model, shift: bool) -> None:
    """Twin: keys and values of the whole canvas, of which each forward replaces those that it computes."""
    start = torch.cat([model.encode(PROMPTS[0]), torch.full((1, 16), int(model.mask_id or 0))], 1)
    width = start.shape[1]
    first, second = (width - 16, width - 8), (width - 8, width)
    begin = first[0] - int(shift), second[0] - int(shift)
    twin = Forwards(model)
    twin.cache = DynamicCache()
    sparse = PolicyForwards(model, sk.SparseCache(keep=1.0, blocks=2), shift=shift)
    sparse.canvas = canvas_of(start, first[0])
    windows = [(0, width), (begin[0], first[1]), (begin[0], width), (begin[1], width), (begin[1], width)]
    for step, (block, window) in enumerate(zip([first, first, second, second, second], windows, strict=True)):
        canvas = start.clone()
        canvas[:, first[0] : first[0] + 4 * step] = 5  # tokens are written, some of them as a block ends
        if step:
            twin.cache.layers = [OverwritingLayer(layer, window) for layer in twin.cache.layers]
        positions = torch.arange(width)[None, window[0] : window[1]]
        expected = twin._run(canvas[:, window[0] : window[1]], None, positions, twin.cache)
        assert sparse.window(block, width) == window
        assert torch.equal(sparse(canvas, None, block), expected)


@pytest.mark.parametrize(
    ("words", "looks"), [({}, 2), ({"blocks": 2}, 1), ({"blocks": "all"}, 1), ({"blocks": 2, "refresh": 5}, 4)]
)
def test_how_often_the_whole_canvas_is_computed(model: Model, words: dict[str, object], looks: int) -> None:
    trace = sk.trace(model, PROMPTS[0], settings(keep=0.5, **words))
    assert int((trace.queries.sum(1) == trace.positions).sum()) == looks
    assert torch.equal(trace.canvas[-1], decode(model, model.encode(PROMPTS[0]), settings(keep=0.5, **words)).tokens[0])


@pytest.mark.parametrize("by", ["sinks", "no_sinks"])
def test_the_strongest_sinks_are_the_first_to_be_kept_or_to_go(model: Model, by: str) -> None:
    cache = PolicyForwards(model, sk.SparseCache(by=by), shift=False)  # type: ignore[arg-type]
    cache.canvas = canvas_of(torch.zeros(1, 12, dtype=torch.int64), 8)
    cache.step.block = (8, 10)
    outside = torch.ones(1, 12, dtype=torch.bool)
    outside[:, 8:10] = False
    received = torch.full((1, 1, 12), 0.2)
    received[..., 1], received[..., 4], received[..., 6] = 6.0, 9.0, 5.5  # all three above the mean by more than 3
    cache.received[0] = received
    cache.layers[0].keys = cache.layers[0].values = torch.zeros(1, 1, 12, 4)
    scores = cache.scores(0, (8, 10)).masked_fill(~outside[:, None], -torch.inf)
    order = scores.argsort(dim=-1, descending=True, stable=True)[0, 0, :10].tolist()
    near = [7, 10, 11, 5, 3, 2, 0]
    assert order == ([4, 1, 6, *near] if by == "sinks" else [*near, 6, 1, 4])


def test_random_keys_differ_between_rows_that_have_seeds_of_their_own(model: Model) -> None:
    ids, mask = batch(model, 3)
    wanted = settings(keep=0.2, by="random")
    with seeded((1, 2, 3)):
        together = decode(model, ids, wanted, mask).tokens[:, ids.shape[1] :]
    alone = model.encode(PROMPTS[1])
    with seeded((2,)):
        assert torch.equal(decode(model, alone, wanted).tokens[0, alone.shape[1] :], together[1])
    layers = []
    for seed in (2, 3):
        with seeded((seed,)), forward_context(_nothing(seed)):
            layers.append(CacheStep(shift=False).draw(0, (1, 2, 30), alike=False))
    assert not torch.equal(*layers)


def _nothing(seed: int) -> Forward:
    return Forward(object(), 0, torch.zeros(1, 1, dtype=torch.int64), 1, 0, None, 1, row_seeds=(seed,))


def test_keep_self_leaves_a_key_its_own_attention_in_a_window(model: Model) -> None:
    ids = model.encode(PROMPTS[0])
    place = ids.shape[1] + 2
    for keep_self in (False, True):
        masking = sk.MaskPositions((place,), keep_self=keep_self)
        made = sk.trace(model, PROMPTS[0], replace(settings(), cache="dual"), interventions=[masking])
        assert made.received is not None
        own = made.received[1:8, ..., place].float().sum(-1)  # [step, layer, head]: within the first block
        assert bool((own > 0).any()) == keep_self
        assert float(own.max()) <= 1.001


@pytest.mark.parametrize("blocks", [1, "all"])
def test_masking_works_under_the_cache(model: Model, blocks: int | str) -> None:
    ids, wanted = model.encode(PROMPTS[0]), settings(keep=0.5, blocks=blocks)
    with sk.intervene(model, sk.MaskSinks(k=0)):
        same = decode(model, ids, wanted).tokens
    assert torch.equal(same, decode(model, ids, wanted).tokens)
    with sk.intervene(model, sk.MaskSinks(k=2)) as active:
        decode(model, ids, wanted)
    assert active.effect.keys > 0 and active.effect.leak == 0


def test_fewer_keys_are_another_result_and_drift_refreshes(model: Model) -> None:
    ids = model.encode(PROMPTS[0])
    forwards = []
    full = []
    for drift in (None, 0.0, 2.0):
        queries: list[int] = []
        with sk.observe(
            model,
            layers=[0],
            keep=lambda layer, received, kept=queries: kept.append(int(received.sum((1, 2, 3))[0].round())),
        ):  # type: ignore[misc]
            decode(model, ids, settings(keep=0.5, drift=drift))
        forwards.append(len(queries))
        full.append(sum(count > 8 * 4 for count in queries))
    assert forwards == [16, 16, 16]
    assert full[0] == full[2] < full[1]


def test_settings_survive_a_file(model: Model) -> None:
    wanted = settings(keep=0.125, by="sinks", rule={"rule": "threshold", "epsilon": 2.0, "unit": "sum"})
    assert sk.Decode.from_dict(wanted.to_dict()) == wanted


@pytest.mark.parametrize(
    "words", [{"keep": 1.5}, {"keep": True}, {"by": "luck"}, {"refresh": 0}, {"per": "token"}, {"recent": -1}, {"drift": 3},
              {"rule": {"rule": "threshold"}}, {"seed": 4}, {"blocks": 0}, {"blocks": "some"}, {"blocks": 2, "refresh": 1}]
)  # fmt: skip
def test_bad_settings_are_refused(words: dict[str, object]) -> None:
    with pytest.raises(sk.SinkscopeError):
        sk.SparseCache(**words)  # type: ignore[arg-type]


def test_decoders_without_a_whole_canvas_refuse_it() -> None:
    with pytest.raises(sk.SinkscopeError, match="sparse"):
        replace(sk.Decode.autoregressive(length=8), cache=sk.SparseCache())
    with pytest.raises(sk.SinkscopeError, match="Guidance and a cache"):
        replace(sk.Decode.llada(length=8, guidance=1.0), cache=sk.SparseCache())
