"""Every intervention: its no-op changes nothing at all, and its effect is seen in the column sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sinkscope as sk
from golden_sets import golden
from sinkscope.attention.call import Call, untouched_columns
from sinkscope.errors import InterventionError
from sinkscope.interventions.base import Intervention, top
from sinkscope.models.model import Model

NOOPS = [
    sk.MaskSinks(k=0), sk.MaskSinks(k=0, rank="as_run", rows="last"), sk.MaskRandom(k=0), sk.MaskPositions(()),
    sk.Window(None), sk.CutContext(2, 2), sk.ZeroValues(of=sk.MaskSinks(k=0)), sk.MeanValues(of=sk.MaskPositions(())),
]  # fmt: skip
REAL = [
    sk.MaskSinks(k=2), sk.MaskSinks(k=2, rank="as_run"), sk.MaskSinks(k=1, rows="last"), sk.MaskRandom(k=2),
    sk.MaskRandom(k=2, match="mass"), sk.MaskPositions((0, -1)), sk.CutContext(2, 5), sk.CutContext(0.25, 0.75),
    sk.MaskSinks(k=3, above=sk.Threshold(1.0, unit="sum")),
]  # fmt: skip
SETTINGS = {
    "llada": sk.Decode.llada(length=8, block=4, steps=8),
    "dream": sk.Decode.dream(length=8, steps=8, algorithm="entropy", temperature=0.0, top_p=None, top_k=None),
    "mmada": sk.Decode.mmada(length=8, block=8, steps=4),
}


def prompt(family: str) -> torch.Tensor:
    return golden(family).tensor("forward.input_ids")[:, :7].clamp(max=100)


@pytest.mark.parametrize("family", SETTINGS)
@pytest.mark.parametrize("noop", NOOPS, ids=repr)
def test_noop_is_bit_identical(family: str, noop: Intervention) -> None:
    model, ids = golden(family).model, golden(family).tensor("forward.input_ids")
    assert noop.is_noop
    with sk.intervene(model, noop):
        logits = [model.logits(ids) for _ in range(3)]
        done = sk.decode(model, prompt(family), SETTINGS[family])
    for after in logits:
        assert torch.equal(after, model.logits(ids))
    assert torch.equal(done.history, sk.decode(model, prompt(family), SETTINGS[family]).history)


@pytest.mark.parametrize("family", SETTINGS)
@pytest.mark.parametrize("real", REAL, ids=repr)
def test_masked_columns_receive_nothing(family: str, real: Intervention) -> None:
    model = golden(family).model
    assert not real.is_noop
    with sk.intervene(model, real, record=True) as active, sk.observe(model) as seen:
        sk.decode(model, prompt(family), SETTINGS[family])
    assert sum(int(masked.sum()) for masked in active.masked) > 0
    for masked, received in zip(active.masked, seen.received, strict=True):
        assert not received.sum(2)[masked].any()
        torch.testing.assert_close(received.sum((2, 3)), torch.full_like(received[:, :, 0, 0], 15.0), atol=1e-3, rtol=0)
    assert active.effect.leak == 0 and 0 < active.effect.key_share < 1 and 0 < active.effect.mass_share < 1


@pytest.mark.parametrize("change", [sk.ZeroValues, sk.MeanValues])
def test_changed_values_keep_their_attention(change: type) -> None:
    model, ids = golden("dream").model, golden("dream").tensor("forward.input_ids")  # two heads share a value here
    with sk.observe(model) as before:
        untouched = model.logits(ids)
    with sk.intervene(model, change(of=sk.MaskPositions((1,), layers=(2,)))) as active, sk.observe(model) as after:
        changed = model.logits(ids)
    for plain, emptied in zip(before.received, after.received, strict=True):
        torch.testing.assert_close(emptied, plain, atol=1e-5, rtol=0)
    assert not torch.allclose(changed, untouched)
    assert active.effect.keys == model.config.num_attention_heads


def test_zero_and_mean_values_against_the_obvious() -> None:
    from sinkscope.interventions.values import MeanValues, ZeroValues

    values, picked = torch.randn(2, 3, 4, 5), torch.rand(2, 3, 4) < 0.5
    real = torch.tensor([[True] * 4, [False, True, True, True]])
    zero = ZeroValues(of=sk.MaskSinks(k=1)).replaced(values, picked, real)
    mean = MeanValues(of=sk.MaskSinks(k=1)).replaced(values, picked, real)
    for b, h, k in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).tolist():
        expected = values[b, h][real[b]].mean(0)
        torch.testing.assert_close(mean[b, h, k], expected if picked[b, h, k] else values[b, h, k])
        torch.testing.assert_close(zero[b, h, k], torch.zeros(5) if picked[b, h, k] else values[b, h, k])


@pytest.mark.parametrize("family", SETTINGS)
def test_window_limits_attention_to_a_band(family: str) -> None:
    model = golden(family).model
    keep = sk.Keep(dtype=torch.float32, maps=((0, 0), (2, 1)))
    trace = sk.trace(model, prompt(family), SETTINGS[family], interventions=[sk.Window(3)], keep=keep)
    positions = torch.arange(trace.positions)
    far = (positions[:, None] - positions[None]).abs() > 3
    assert not trace.maps[:, :, far].any()
    assert bool((trace.maps[:, :, ~far] > 0).all())


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(
    "cut", [sk.MaskSinks(k=2), sk.MaskRandom(k=2), sk.MaskPositions((0,)), sk.CutContext(0.2, 0.6)]
)
def test_a_padded_row_is_treated_as_if_alone(family: str, cut: Intervention) -> None:
    model, ids = golden(family).model, prompt(family)
    short = ids[:, 3:]
    fill = torch.full((1, 3), model.pad_id)
    batch, mask = torch.cat([ids, torch.cat([fill, short], 1)]), torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    with sk.intervene(model, cut):
        together = sk.decode(model, batch, SETTINGS[family], attention_mask=mask).tokens
        first = sk.decode(model, ids, SETTINGS[family]).tokens
        second = sk.decode(model, short, SETTINGS[family]).tokens
    assert torch.equal(together[0], first[0])
    assert torch.equal(together[1, 3:], second[0])


def test_random_keys_are_never_the_sinks_and_match_the_budget() -> None:
    model, ids = golden("llada").model, golden("llada").tensor("forward.input_ids")
    maps = []
    for control in (
        sk.MaskSinks(k=3),
        sk.MaskRandom(k=3, seed=1),
        sk.MaskRandom(k=3, seed=2),
        sk.MaskRandom(k=3, match="mass"),
    ):
        with sk.intervene(model, control, record=True) as active:
            model.logits(ids)
            model.logits(ids)
        maps.append((torch.stack(active.masked)[3:], active.effect))
    (sinks, sink_effect), (one, _), (two, _), (mass, mass_effect) = maps
    assert bool((sinks.sum(-1) == 3).all()) and bool((one.sum(-1) == 3).all())
    assert not (sinks & one).any() and not (sinks & mass).any() and not torch.equal(one, two)
    assert mass_effect.mass_share > 0.6 * sink_effect.mass_share  # all keys but the sinks may weigh less than they do
    assert mass_effect.mass_share < 1.5 * sink_effect.mass_share  # right on average, over many heads


def test_random_mass_is_that_of_the_sinks_on_average() -> None:
    from sinkscope.interventions.memory import Layer, Memory

    before = torch.rand(1, 2, 30)  # what the sinks drew at the last forward says little about this one
    call = _call(1, 2, 30, dim=4)
    memory = Memory({0: Layer({("clean", "all"): before}, torch.tensor([30]))}, {0: 1})
    now = untouched_columns(call).sum(2)
    torch.testing.assert_close(now, (call.q @ call.k.mT * 0.5).softmax(-1).sum(2))
    sinks = torch.zeros_like(before, dtype=torch.bool).scatter(-1, before.topk(4).indices, True)
    target, largest = (now * sinks).sum(-1), now.masked_fill(sinks, 0).amax(-1)
    taken = []
    for seed in range(400):
        picked = sk.MaskRandom(k=4, match="mass", seed=seed).select(call, memory)
        assert picked is not None and not (picked & sinks).any()
        taken.append((now * picked).sum(-1))
        assert bool(((taken[-1] - target).abs() <= largest + 1e-5).all())  # never off by more than a key
    torch.testing.assert_close(torch.stack(taken).mean(0), target, rtol=0.05, atol=0.05)


def test_a_new_generation_starts_untouched() -> None:
    model = golden("llada").model
    with sk.intervene(model, sk.MaskSinks(k=2), record=True) as active:
        for _ in range(2):
            sk.decode(model, prompt("llada"), SETTINGS["llada"])
    masked = torch.stack(active.masked).unflatten(0, (2, 8, -1)).flatten(2).any(-1)  # run, step
    assert masked.tolist() == [[False] + [True] * 7] * 2


def test_only_some_layers_and_heads() -> None:
    model = golden("llada").model
    with sk.intervene(model, sk.MaskSinks(k=2, layers=(1,), heads=(0, 3)), record=True) as active:
        sk.decode(model, prompt("llada"), SETTINGS["llada"])
    masked = torch.stack(active.masked).unflatten(0, (8, -1)).any(-1).any(0)[:, 0]  # layer, head
    assert masked.tolist() == [[False] * 4, [True, False, False, True], [False] * 4]


def test_keep_self_leaves_a_key_its_own_attention() -> None:
    model = golden("llada").model
    keep = sk.Keep(dtype=torch.float32, maps=((1, 2),))
    masking = sk.MaskPositions((0, 4), keep_self=True)
    trace = sk.trace(model, prompt("llada"), SETTINGS["llada"], interventions=[masking], keep=keep)
    for key in (0, 4):
        scores = trace.scores()[:, 1, 2, key]
        assert bool((scores > 0).all()) and bool((scores <= 1).all())


def test_several_at_once() -> None:
    model, ids = golden("llada").model, golden("llada").tensor("forward.input_ids")
    outer, inner = (sk.MaskPositions((2,)), sk.Window(4)), sk.MaskPositions((5,))
    with sk.intervene(model, *outer), sk.intervene(model, inner), sk.observe(model) as seen:
        model.logits(ids)
    for received in seen.received:
        assert not received[..., [2, 5]].any()


def test_as_run_lets_a_masked_key_come_back_and_clean_does_not() -> None:
    model, ids = golden("llada").model, golden("llada").tensor("forward.input_ids")
    for rank, again in (("as_run", False), ("clean", True)):
        with sk.intervene(model, sk.MaskSinks(k=1, rank=rank, layers=(0,)), record=True) as active:
            for _ in range(3):
                model.logits(ids)
        second, third = active.masked[3], active.masked[6]
        assert torch.equal(second, third) == again  # layer 0 sees the same queries and keys each time


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 9))
def test_ties_go_to_the_lowest_position(scores: list[int], k: int) -> None:
    ranked = sorted(range(len(scores)), key=lambda position: (-scores[position], position))[:k]
    expected = [position in ranked and scores[position] > 0 for position in range(len(scores))]
    assert top(torch.tensor(scores, dtype=torch.float32), k).tolist() == expected


def test_autoregressive_by_last_row_and_by_column(tmp_path: object) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(str(tmp_path))
    model = sk.load(str(tmp_path))
    ids, settings = torch.arange(9)[None], sk.Decode.autoregressive(length=5)
    keep = sk.Keep(dtype=torch.float32)
    clean = sk.trace(model, ids, settings, keep=keep)
    for rows in ("last", "all"):
        with sk.intervene(model, sk.MaskSinks(k=1, rows=rows), record=True) as active:
            sk.decode(model, ids, settings)
        step_one = torch.stack(active.masked[2:4])[:, 0]  # layer, head, key
        assert step_one.shape[-1] == 10 and bool((step_one.sum(-1) == 1).all())
        expected = clean.scores()[0] if rows == "all" else _last_row(model, ids)
        assert torch.equal(step_one.int().argmax(-1), expected.argmax(-1))


def _last_row(model: Model, ids: torch.Tensor) -> torch.Tensor:
    model.module.set_attn_implementation("eager")
    maps = model.module(ids, output_attentions=True).attentions
    model.module.set_attn_implementation("sdpa")
    return torch.stack([layer[0, :, -1] for layer in maps])


def _call(batch: int, heads: int, keys: int, dim: int = 0) -> Call:
    made = torch.randn(3, batch, heads, keys, dim, generator=torch.Generator().manual_seed(3))
    return Call(0, made[0], made[1], made[2], None, False, None, None, lambda: made[0], False)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sk.MaskSinks(k=-1), lambda: sk.MaskSinks(k=1.5), lambda: sk.MaskSinks(k=1, rank="dirty"),
        lambda: sk.MaskSinks(k=1, rows="first"), lambda: sk.MaskRandom(k=1, match="weight"), lambda: sk.Window(-1),
        lambda: sk.CutContext(4, 2), lambda: sk.CutContext(0.2, 3), lambda: sk.MaskPositions(("a",)),
        lambda: sk.ZeroValues(of=3),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(wrong: object) -> None:
    with pytest.raises(InterventionError, match=r"must|has no effect"):
        wrong()  # type: ignore[operator]


def test_only_interventions_can_be_put_in() -> None:
    with pytest.raises(InterventionError, match="MaskSinks"), sk.intervene(golden("llada").model, 5):  # type: ignore[arg-type]
        pass
