"""What every cache policy must do: finish, keep its budget, free the rest, and answer a padded batch as row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from sinkscope.attention.call import EachCall
from sinkscope.attention.patch import patched
from sinkscope.decoding import CachePolicy, Decoded, decode
from sinkscope.decoding.caches import CACHE_POLICIES
from sinkscope.models import Model, load
from sinkscope.models.model import pad

EVICTING = ("h2o", "streaming", "random", "sparse_dllm", "focus", "sparse_cache")
PROMPTS = [problem.prompt for problem in sk.tasks.problems("arithmetic", n=3, seed=5)]


@pytest.fixture(scope="module", params=["tiny-llada", "tiny-dream"])
def model(request: pytest.FixtureRequest) -> Model:
    return load(request.param)


@pytest.fixture(scope="module")
def llada() -> Model:
    return load("tiny-llada")


def settings(policy: Any, **words: Any) -> sk.Decode:
    return sk.Decode.parallel(length=16, block=8, threshold=None, cache=policy, **words)


def answer(model: Model, policy: Any, prompt: str = PROMPTS[0]) -> Decoded:
    return decode(model, model.encode(prompt), settings(policy))


@pytest.mark.parametrize("name", CACHE_POLICIES.names())
def test_every_policy_decodes_and_survives_a_file(model: Model, name: str) -> None:
    wanted = settings(name if name in ("dual", "prefix") else {"name": name})
    done = decode(model, model.encode(PROMPTS[0]), wanted)
    assert done.history is not None and done.cache is not None and done.cache.computed is not None
    assert not bool((done.tokens == model.require_mask()).any())
    assert done.cache.policy == name and 0 < done.cache.computed_share <= 1
    assert torch.isclose(done.cache.computed.float().mean(), torch.tensor(done.cache.computed_share), atol=1e-5)
    assert done.cache.kept_bytes <= done.cache.peak_bytes < done.cache.process_peak_bytes
    assert sk.Decode.from_dict(wanted.to_dict()) == wanted


@pytest.mark.parametrize("name", [name for name in CACHE_POLICIES.names() if name != "d2cache"])
def test_a_padded_batch_is_one_by_one(model: Model, name: str) -> None:
    """d2Cache tops up shorter rows, so that its rows depend on each other."""
    words = {"refresh": 1} if name == "dkv_cache" else {}  # columns of other rows are computed too, where counts differ
    ids, mask = pad([model.encode(prompt) for prompt in PROMPTS], model)
    together = decode(model, ids, settings({"name": name, **words}), mask).tokens[:, ids.shape[1] :]
    for row, prompt in enumerate(PROMPTS):
        alone = model.encode(prompt)
        tokens = decode(model, alone, settings({"name": name, **words})).tokens[0, alone.shape[1] :]
        assert torch.equal(tokens, together[row])


@pytest.mark.parametrize("name", EVICTING)
def test_the_budget_is_kept_and_the_rest_is_freed(llada: Model, name: str) -> None:
    done, dual = answer(llada, {"name": name, "keep": 0.25}), answer(llada, "dual")
    assert done.cache is not None and done.cache.kept is not None and dual.cache is not None
    width = done.tokens.shape[1]
    counts = done.cache.kept.sum(-1)
    floor = name == "sparse_dllm"
    assert bool((counts == 8 + (int((width - 8) * 0.25) if floor else -(-(width - 8) // 4))).all())
    config = llada.config
    a_column = 2 * 4 * config.num_hidden_layers * config.hidden_size
    assert done.cache.kept_bytes == int(counts.max()) * a_column < dual.cache.kept_bytes == width * a_column
    # While a look runs, one layer at most is whole beside those that were laid out.
    assert done.cache.peak_bytes <= done.cache.kept_bytes + 2 * width * a_column / config.num_hidden_layers
    assert done.cache.peak_bytes < dual.cache.peak_bytes


def received_by_look(model: Model, policy: Any) -> Tensor:
    """[look, layer, head, column]: what each column received at each look."""
    found: list[Tensor] = []
    with sk.observe(model, keep=lambda layer, received: found.append(received.sum(2)[0])):  # type: ignore[func-returns-value]
        done = answer(model, policy)
    layers = model.config.num_hidden_layers
    assert done.cache is not None and done.cache.computed is not None
    looks = done.cache.computed[:, 0, 0].all(-1).nonzero().flatten()
    return torch.stack([torch.stack(found[int(at) * layers : (int(at) + 1) * layers]) for at in looks])


@pytest.mark.parametrize("rule", [sk.Threshold(3, unit="sum"), sk.ZScore(2), sk.HeadShare(0.1)])
@pytest.mark.parametrize("name", EVICTING)
def test_twins_keep_and_drop_the_sinks_at_the_same_budget(llada: Model, name: str, rule: Any) -> None:
    sizes = set()
    for sinks in ("keep", "drop"):
        policy = {"name": name, "keep": 0.5, "sinks": sinks, "rule": rule.to_dict()}
        done, received = answer(llada, policy), received_by_look(llada, policy)
        assert done.cache is not None and done.cache.kept is not None
        sizes.add(done.cache.kept_bytes)
        start = done.tokens.shape[1] - 16
        for look, kept in zip(received[:1], done.cache.kept[:1, :, 0], strict=True):
            marks = rule.marks(look, float(look.shape[-1]), torch.ones_like(look, dtype=torch.bool))
            marks[..., start : start + 8] = False
            few = marks.sum(-1) <= (marks.shape[-1] - 8) // 2
            held = (kept & marks).sum(-1)
            assert torch.equal(held[few], marks.sum(-1)[few] if sinks == "keep" else torch.zeros_like(held[few]))
    assert len(sizes) == 1


@pytest.mark.parametrize("name", ["h2o", "random", "sparse_cache"])
def test_heads_share_what_they_keep(llada: Model, name: str) -> None:
    for per in ("head", "layer", "model"):
        done = answer(llada, {"name": name, "keep": 0.25, "per": per})
        assert done.cache is not None and done.cache.kept is not None
        kept = done.cache.kept[0, :, 0]  # [layer, kv head, column]
        assert torch.equal(kept, kept[:, :1].expand_as(kept)) == (per != "head")
        assert torch.equal(kept, kept[:1, :1].expand_as(kept)) == (per == "model")


@pytest.mark.parametrize("name", ["dkv_cache", "d2cache", "focus", "dllm_cache"])
def test_a_forward_over_single_columns_says_which(llada: Model, name: str) -> None:
    """The queries that attention sees are those of the columns that the policy computed."""
    seen: list[Tensor] = []

    def note(call: Any) -> None:
        columns = call.forward.columns
        flags = torch.ones(1, call.forward.ids.shape[1], dtype=torch.bool)
        if columns is not None:
            flags = torch.zeros_like(flags).scatter(1, columns, True)
        elif call.queries < flags.shape[1]:
            flags[:] = False
            flags[:, call.start : call.start + call.queries] = True
        seen.append(flags)

    with patched(llada.module, EachCall(note)):
        done = answer(llada, {"name": name})
    assert done.cache is not None and done.cache.computed is not None
    computed = done.cache.computed.flatten(0, 1)
    assert torch.equal(torch.stack(seen), computed[computed.any(-1).any(-1)])
    assert bool((computed.sum(-1) < computed.shape[-1]).any())


@pytest.mark.parametrize("name", ["dkv_cache", "d2cache", "focus", "sparse_dllm"])
def test_a_trace_counts_every_query_once(llada: Model, name: str) -> None:
    trace = sk.trace(llada, PROMPTS[0], settings({"name": name}))
    assert trace.received is not None
    total = trace.received.float().sum((-1, -2))  # [step, layer, head]
    queries = trace.queries.sum(1).float()
    torch.testing.assert_close(total, queries[:, None, None].expand_as(total), atol=0.05, rtol=0)


def test_a_policy_without_eviction_is_exact_where_everything_is_computed(llada: Model) -> None:
    plain = decode(llada, llada.encode(PROMPTS[0]), settings(None))
    always = ({"name": "dllm_cache", "prompt_interval": 1, "answer_interval": 1}, {"name": "dkv_cache", "refresh": 1})
    for policy in always:
        assert torch.equal(plain.tokens, answer(llada, policy).tokens)


@pytest.mark.parametrize(
    ("cache", "told"),
    [({"name": "h20"}, "did you mean h2o"), ({"name": "h2o", "keep": 2.0}, "keep must be"),
     ({"name": "streaming", "rule": {"rule": "zscore"}}, "rule has no effect"),
     ({"name": "sparse_dllm", "kernel": 2}, "odd kernel")],
)  # fmt: skip
def test_bad_policies_are_refused(cache: Any, told: str) -> None:
    with pytest.raises(sk.SinkscopeError, match=told):
        settings(cache)


def test_a_look_may_be_asked_for_by_the_policy_itself(llada: Model) -> None:
    class EverySecond(CachePolicy):
        name = "every_second"

        def due(self, canvas: Any, step: Any) -> bool:
            return bool(step.forward % 2 == 0)

    try:
        done = decode(llada, llada.encode(PROMPTS[0]), replace(settings(None), cache=EverySecond()))
    finally:
        CACHE_POLICIES._things.pop("every_second")
    assert done.cache is not None and done.cache.looks == 8
