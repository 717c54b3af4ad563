"""Patches and controls on planted models, where the truth is known, and against plain attention."""

from __future__ import annotations

import pytest
import torch

import sinkscope as sk
from sinkscope.attention.calls import Call, perform
from sinkscope.interventions import Active, Intervention
from sinkscope.models import Model

PROBLEMS = list(sk.tasks.problems("repeat", n=6, difficulty=2))
OTHER = next(problem for problem in PROBLEMS if problem.data["letter"] != PROBLEMS[0].data["letter"])


def answer(model: Model, *changes: Intervention, prompt: str = PROBLEMS[0].prompt) -> str:
    with sk.intervene(model, *changes):
        return model.generate(prompt)


@pytest.mark.parametrize("kind", [sk.PatchValues, sk.PatchKeys])
@pytest.mark.parametrize("name", ["planted-carrier", "tiny-llada"])
def test_a_run_patched_with_itself_is_itself_bit_for_bit(name: str, kind: type[sk.PatchValues]) -> None:
    model = sk.load(name)
    prompt = PROBLEMS[0].prompt
    plain = sk.trace(model, prompt)
    with sk.intervene(model, kind(sk.MaskSinks(k=2), source=plain)):
        patched = sk.decode(model, model.encode(prompt), model.defaults)
    assert torch.equal(patched.history[:, 0], plain.canvas)


def test_the_carrier_carries_the_answer() -> None:
    model = sk.load("planted-carrier")
    source = sk.trace(model, OTHER.prompt)
    moved = answer(model, sk.PatchValues(sk.MaskSinks(k=1, layers=(1,)), source=source))
    # One letter is committed before there is a map to rank by; all others follow the source.
    assert sorted(moved.split()) == sorted([str(PROBLEMS[0].data["letter"]), *[str(OTHER.data["letter"])] * 7])


@pytest.mark.parametrize("name", ["planted-drain", "planted-static", "planted-moving"])
def test_a_drain_carries_nothing(name: str) -> None:
    model = sk.load(name)
    source = sk.trace(model, OTHER.prompt)
    assert PROBLEMS[0].check(answer(model, sk.PatchValues(sk.MaskSinks(k=1, layers=(1,)), source=source)))


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


NOTHING = (
    sk.SoftmaxOffByOne(weight=0), sk.Soften(1), sk.AddSinkToken(count=0), sk.PenaliseSinks(k=1, penalty=0),
    sk.HoldSinks(k=1, bonus=0), sk.RotateSinks(k=0), sk.PatchValues(sk.MaskSinks(k=0)),
)  # fmt: skip


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
    out = perform(call, [Active((sk.SoftmaxOffByOne(weight),))])
    torch.testing.assert_close(out, plain_attention(call.q, call.k, call.v, extra=weight), atol=1e-5, rtol=1e-4)


def test_softening_divides_the_scores() -> None:
    call = a_call()
    out = perform(call, [Active((sk.Soften(2.5),))])
    torch.testing.assert_close(out, plain_attention(call.q, call.k, call.v, heat=2.5), atol=1e-5, rtol=1e-4)


def test_a_penalty_lowers_the_top_key_of_the_last_forward() -> None:
    call = a_call()
    active = Active((sk.PenaliseSinks(k=1, penalty=2.0),))
    first = perform(call, [active])
    torch.testing.assert_close(first, plain_attention(call.q, call.k, call.v), atol=1e-5, rtol=1e-4)
    second = perform(call, [active])
    weights = (call.q @ call.k.transpose(-1, -2) * 8**-0.5).softmax(-1).sum(2)
    bias = torch.zeros_like(weights).scatter(-1, weights.argmax(-1, keepdim=True), -2.0)[:, :, None]
    torch.testing.assert_close(second, plain_attention(call.q, call.k, call.v, bias), atol=1e-5, rtol=1e-4)


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
    from sinkscope.interventions.conditions import condition_from_dict, read_entry

    for entry in entries:
        for condition in read_entry(entry):
            assert condition_from_dict(condition.to_dict()) == condition
            assert condition.intervention(seed=1) is not None


@pytest.mark.parametrize(
    "make",
    [lambda: sk.Soften(0), lambda: sk.SoftmaxOffByOne(-1), lambda: sk.PenaliseSinks(k=1, penalty=float("nan")),
     lambda: sk.PatchValues("sinks"), lambda: sk.PatchValues(sk.MaskSinks(k=1), source="later"),  # type: ignore[arg-type]
     lambda: sk.AddSinkToken(count=2)],
)  # fmt: skip
def test_senseless_settings_are_refused(make: object) -> None:
    with pytest.raises(sk.SinkscopeError, match="Expected"):
        make()  # type: ignore[operator]
