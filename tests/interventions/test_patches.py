"""Patches and controls on planted models, where the truth is known, and against plain attention."""

from __future__ import annotations

import pytest
import torch

import sinkscope as sk
from sinkscope.attention.call import Call, run_call
from sinkscope.interventions import Active, Intervention
from sinkscope.models import Model

PROBLEMS = list(sk.tasks.problems("repeat", n=6, difficulty=2))
OTHER = next(problem for problem in PROBLEMS if problem.data["letter"] != PROBLEMS[0].data["letter"])


def answer(model: Model, *changes: Intervention, prompt: str = PROBLEMS[0].prompt) -> str:
    with sk.intervene(model, *changes):
        return model.generate(prompt)


SELECTORS = (
    sk.MaskSinks(k=2), sk.MaskRandom(k=2, seed=1), sk.MaskRandom(k=2, match="mass"), sk.MaskSinks(k=2, kinds="content"),
    sk.MaskSinks(k=2, above=sk.HeadShare(0.3)), sk.MaskSinks(k=2, below=sk.HeadShare(0.3)),
    sk.MaskSinks(k=2, value_norm="low", per="model"), sk.MaskSinks(k=1, rows="last"), sk.MaskPositions((3, -1)),
    sk.CutContext(0.2, 0.5),
)  # fmt: skip


@pytest.mark.parametrize("kind", [sk.PatchValues, sk.PatchKeys])
@pytest.mark.parametrize("name", ["planted-carrier", "tiny-llada"])
def test_a_run_patched_with_itself_is_itself_bit_for_bit(name: str, kind: type[sk.PatchValues]) -> None:
    """Whatever picks the keys, it picks the same ones in a row that is the same; so nothing at all is changed."""
    model = sk.load(name)
    ids = model.encode(PROBLEMS[0].prompt).repeat(2, 1)
    plain = sk.decode(model, ids, model.defaults)
    for of in SELECTORS:
        with sk.intervene(model, kind(of, source="next")) as active:
            patched = sk.decode(model, ids, model.defaults)
        assert torch.equal(patched.history, plain.history) and active.effect.keys == 0, of


@pytest.mark.parametrize("name", ["planted-drain", "planted-static", "planted-moving"])
def test_a_drain_carries_nothing(name: str) -> None:
    model = sk.load(name)
    with sk.intervene(model, sk.PatchValues(sk.MaskSinks(k=1, layers=(1,)))):
        assert PROBLEMS[0].check(model.generate([PROBLEMS[0].prompt, OTHER.prompt])[0])


def test_rows_of_a_batch_take_from_the_next() -> None:
    model = sk.load("planted-carrier")
    with sk.intervene(model, sk.PatchValues(sk.MaskSinks(k=1, layers=(1,)))) as active:
        texts = model.generate([problem.prompt for problem in PROBLEMS])
    letters = [str(problem.data["letter"]) for problem in PROBLEMS]
    for text, own, following in zip(texts, letters, [*letters[1:], letters[0]], strict=True):
        assert sorted(text.split()) == sorted([own, *[following] * 7])
    assert active.effect.keys > 0


def test_the_last_step_s_values_of_a_still_carrier_are_its_own() -> None:
    model = sk.load("planted-carrier")
    assert PROBLEMS[0].check(answer(model, sk.PatchValues(sk.MaskSinks(k=1, layers=(1,)), source="previous")))


def test_the_first_step_s_values_are_those_of_the_first_forward() -> None:
    """A carrier that stands still has carried the same from the start; one that did not exist yet carries the old."""
    model = sk.load("planted-carrier")
    assert PROBLEMS[0].check(answer(model, sk.PatchValues(sk.MaskSinks(k=1, layers=(1,)), source="first")))
    call, later = a_call(1), a_call(2)
    active = Active((sk.PatchValues(sk.MaskPositions((0,)), source="first"),))
    run_call(call, [active])
    for _ in range(2):  # at every later forward, not only at the second
        out = run_call(later, [active])
        values = later.v.clone()
        values[:, :, 0] = call.v[:, :, 0]
        torch.testing.assert_close(out, plain_attention(later.q, later.k, values), atol=1e-5, rtol=1e-4)


def test_random_keys_of_a_carrier_carry_nothing() -> None:
    """The control of a patch: as many keys that are no sinks, from the same source."""
    from sinkscope.conditions import Condition

    model = sk.load("planted-carrier")
    sinks, random = (
        condition.seeded(seed=3)
        for condition in Condition.read({"name": "patch_values", "k": 1, "source": "next", "of": ["sinks", "random"]})
    )
    assert isinstance(random, sk.PatchValues) and isinstance(random.of, sk.MaskRandom)
    prompts = [problem.prompt for problem in PROBLEMS]
    kept = {}
    for name, change in (("sinks", sinks), ("random", random)):
        assert change is not None
        with sk.intervene(model, change) as active:
            texts = model.generate(prompts)
        assert active.effect.keys > 0
        kept[name] = sum(problem.check(text) for problem, text in zip(PROBLEMS, texts, strict=True))
    letters = [problem.data["letter"] for problem in PROBLEMS]
    same = sum(own == following for own, following in zip(letters, [*letters[1:], letters[0]], strict=True))
    assert kept["sinks"] == same < kept["random"] and kept["random"] > len(PROBLEMS) // 2


NOTHING = (
    sk.SoftmaxOffByOne(weight=0), sk.Soften(1), sk.AddSinkToken(count=0), sk.PenaliseSinks(k=1, penalty=0),
    sk.HoldSinks(k=1, bonus=0), sk.RotateSinks(k=0), sk.PatchValues(sk.MaskSinks(k=0)), sk.PatchKeys(sk.MaskSinks(k=0)),
)  # fmt: skip
SOMETHING = (
    sk.SoftmaxOffByOne(weight=8), sk.Soften(2), sk.AddSinkToken(), sk.PenaliseSinks(k=1, penalty=2),
    sk.HoldSinks(k=1, bonus=4), sk.RotateSinks(k=1), sk.PatchValues(sk.MaskSinks(k=1), "previous"),
    sk.PatchKeys(sk.MaskSinks(k=1), "previous"), sk.PatchValues(sk.MaskSinks(k=1), "first"),
)  # fmt: skip


@pytest.mark.parametrize("change", SOMETHING, ids=lambda change: type(change).__name__)
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_every_one_takes_effect_on_a_model(name: str, change: Intervention) -> None:
    """What keys receive, or what the model is sure of, is no longer the same from the second forward on at the latest."""
    model = sk.load(name)
    plain = sk.trace(model, PROBLEMS[0].prompt, length=8, block=8, steps=8) if name == "tiny-llada" else sk.trace(
        model, PROBLEMS[0].prompt, length=8, steps=8
    )  # fmt: skip
    changed = sk.trace(
        model, PROBLEMS[0].prompt, settings=plain.settings, interventions=change, keep=sk.Keep(dtype=torch.float32)
    )
    assert plain.received is not None and changed.received is not None
    apart = (plain.received.float() - changed.received).abs().amax((1, 2, 3, 4))  # [step]
    assert float(apart[1:].max()) > 0.05
    assert bool(torch.isfinite(changed.received).all())


@pytest.mark.parametrize("change", SOMETHING, ids=lambda change: type(change).__name__)
def test_a_plain_module_is_changed_too_or_one_sentence_says_why_not(change: Intervention) -> None:
    """A module that calls SDPA and is no language model: no tokens, no kinds, no begin token."""

    class Attends(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    module, x = Attends(), torch.randn(1, 2, 9, 8, generator=torch.Generator().manual_seed(0))
    other = torch.randn(1, 2, 9, 8, generator=torch.Generator().manual_seed(1))
    plain = module(other)
    if isinstance(change, sk.AddSinkToken | sk.RotateSinks):
        with (
            pytest.raises(sk.SinkscopeError, match=r"needs a loaded model|Expected a model with a tokenizer"),
            sk.intervene(module, change),
        ):
            list(map(module, (x, other)))
        return
    with sk.intervene(module, change):
        module(x)
        assert not torch.equal(module(other), plain)
    assert torch.equal(module(other), plain)


@pytest.mark.parametrize("change", NOTHING, ids=lambda change: type(change).__name__)
def test_settings_that_change_nothing_give_the_same_tokens(change: Intervention) -> None:
    model = sk.load("tiny-llada")
    ids = model.encode(PROBLEMS[0].prompt)
    plain = sk.decode(model, ids, model.defaults)
    with sk.intervene(model, change):
        assert torch.equal(plain.history, sk.decode(model, ids, model.defaults).history)


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | float = 0.0, extra: float = 0.0,
                    heat: float = 1.0) -> torch.Tensor:  # fmt: skip
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 / heat + bias).double()
    weights = scores.exp() / (scores.exp().sum(-1, keepdim=True) + extra)
    return (weights @ v.double()).float()


def a_call(seed: int = 0) -> Call:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 4, 9, 8, generator=g) for _ in range(3))
    return Call(0, q, k, v, None, False, None, None, lambda: plain_attention(q, k, v), False)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_off_by_one_adds_to_the_denominator(weight: float) -> None:
    call = a_call()
    out = run_call(call, [Active((sk.SoftmaxOffByOne(weight),))])
    torch.testing.assert_close(out, plain_attention(call.q, call.k, call.v, extra=weight), atol=1e-5, rtol=1e-4)


def test_softening_divides_the_scores() -> None:
    call = a_call()
    out = run_call(call, [Active((sk.Soften(2.5),))])
    torch.testing.assert_close(out, plain_attention(call.q, call.k, call.v, heat=2.5), atol=1e-5, rtol=1e-4)


def test_a_penalty_lowers_the_top_key_of_the_last_forward() -> None:
    call = a_call()
    active = Active((sk.PenaliseSinks(k=1, penalty=2.0),))
    first = run_call(call, [active])
    torch.testing.assert_close(first, plain_attention(call.q, call.k, call.v), atol=1e-5, rtol=1e-4)
    second = run_call(call, [active])
    weights = (call.q @ call.k.transpose(-1, -2) * 8**-0.5).softmax(-1).sum(2)
    bias = torch.zeros_like(weights).scatter(-1, weights.argmax(-1, keepdim=True), -2.0)[:, :, None]
    torch.testing.assert_close(second, plain_attention(call.q, call.k, call.v, bias), atol=1e-5, rtol=1e-4)


def test_a_penalised_key_stays_penalised() -> None:
    """It is ranked by what it would draw: were it ranked by what is left to it, every other forward would spare it."""
    call = a_call()
    active = Active((sk.PenaliseSinks(k=1, penalty=5.0),))
    outs = [run_call(call, [active]) for _ in range(5)]
    assert not torch.equal(outs[0], outs[1])
    for out in outs[2:]:
        assert torch.equal(out, outs[1])


def test_a_rotated_sink_stays_rotated() -> None:
    """Ranked by the map that the model would have used: sinks do not change back at every other forward."""
    model = sk.load("planted-carrier")
    plain = sk.trace(model, PROBLEMS[0].prompt)
    rotated = sk.trace(model, PROBLEMS[0].prompt, interventions=sk.RotateSinks(k=1, layers=(1,)))
    assert plain.received is not None and rotated.received is not None
    top = plain.received[1, 1].float().sum(1).argmax(-1)  # [head]: the sinks, which stand still here
    for step in range(2, rotated.steps):
        now = rotated.received[step, 1].float().sum(1).argmax(-1)
        assert not bool((now == top).all())


def test_an_added_sink_token_draws_attention_and_is_no_key_of_the_trace() -> None:
    model = sk.load("tiny-llada")
    with sk.intervene(model, sk.AddSinkToken()):
        trace = sk.trace(model, PROBLEMS[0].prompt)
    assert trace.received is not None
    drawn = trace.received.float().sum((3, 4))  # [step, layer, head]
    queries = trace.queries.sum(1)[:, None, None]
    assert bool((drawn <= queries + 0.1).all()) and float((queries - drawn).max()) > 0.5


def test_rotated_sinks_change_places_with_keys_of_their_kind() -> None:
    model = sk.load("planted-drain")  # the line break is the only one of its kind: it has no partner
    assert PROBLEMS[0].check(answer(model, sk.RotateSinks(k=1, layers=(1,))))
    carrier = sk.load("planted-carrier")
    assert not PROBLEMS[0].check(answer(carrier, sk.RotateSinks(k=1, layers=(1,))))


def test_held_sinks_stay() -> None:
    model = sk.load("planted-moving")
    plain = sk.trace(model, PROBLEMS[0].prompt).sinks(sk.Threshold(3, unit="uniform"))
    with sk.intervene(model, sk.HoldSinks(k=1, bonus=40.0, layers=(1,))):
        held = sk.trace(model, PROBLEMS[0].prompt).sinks(sk.Threshold(3, unit="uniform"))
    assert plain["position"].n_unique() == 8
    assert held.filter(held["step"] > 0)["position"].n_unique() == 1


def test_every_one_of_them_has_a_name_in_study_files() -> None:
    entries = [
        {"name": "patch_values", "k": 1, "source": "next"}, {"name": "patch_keys", "k": 1}, {"name": "rotate_sinks", "k": 1},
        {"name": "add_sink_token"}, {"name": "off_by_one"}, {"name": "soften", "temperature": [1.5, 2]},
        {"name": "penalise_sinks", "k": 1, "penalty": 2}, {"name": "hold_sinks", "k": 1, "bonus": 4},
    ]  # fmt: skip
    from sinkscope.conditions import Condition

    for entry in entries:
        for condition in Condition.read(entry):
            assert Condition.from_dict(condition.to_dict()) == condition
            assert condition.seeded(seed=1) is not None


@pytest.mark.parametrize(
    "make",
    [lambda: sk.Soften(0), lambda: sk.SoftmaxOffByOne(-1), lambda: sk.PenaliseSinks(k=1, penalty=float("nan")),
     lambda: sk.PatchValues("drains"), lambda: sk.PatchValues([]), lambda: sk.PatchValues([1.5]),  # type: ignore[arg-type]
     lambda: sk.PatchValues(sk.MaskSinks(k=1), source="later"),  # type: ignore[arg-type]
     lambda: sk.AddSinkToken(count=2)],
)  # fmt: skip
def test_senseless_settings_are_refused(make: object) -> None:
    with pytest.raises(sk.SinkscopeError, match=r"must|has no effect"):
        make()  # type: ignore[operator]
