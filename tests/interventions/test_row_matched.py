"""Controls that remove the same attention from the same rows, and controls that spare content, each against a plain loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from by_hand import ByHand, Rule, hide, strong, top_key
from hypothesis import given, settings
from hypothesis import strategies as st
from test_same_protocol import LENGTH, QUESTION, answer
from torch import Tensor

import sinkscope as sk
from sinkscope.conditions import Condition
from sinkscope.errors import InterventionError
from sinkscope.interventions import Selector

LIMIT = 0.05  # the tiny models have no key above 0.3
STRONG = sk.MaskSinks(1, above=sk.HeadShare(LIMIT))
OTHERS = sk.MaskOthers(STRONG)
STRUCTURAL = sk.MaskOthers(STRONG, kinds="structural")
CONTENT = sk.MaskOthers(STRONG, kinds="content")
ARMS = {
    "sink of two": (STRONG, (STRONG, OTHERS)),
    "others of two": (OTHERS, (STRONG, OTHERS)),
    "sink of three": (STRONG, (STRONG, STRUCTURAL, CONTENT)),
    "structural of three": (STRUCTURAL, (STRONG, STRUCTURAL, CONTENT)),
    "content of three": (CONTENT, (STRONG, STRUCTURAL, CONTENT)),
}


def is_structural(model: sk.Model, token: int) -> bool:
    """A marker, the name of a role (here only in headers), or no letter and no digit: said without the package's kinds."""
    text = model.tokenizer.convert_ids_to_tokens(token)
    return (
        text in ("user", "assistant")
        or (text.startswith("<") and text.endswith(">"))
        or not any(sign.isalnum() for sign in text)
    )


def members(model: sk.Model, ids: Tensor, sink: int, selector: Selector) -> list[int]:
    """The keys that a selector means, where the sink of the head is known."""
    if selector == STRONG:
        return [sink]
    wanted = {STRUCTURAL: (True,), CONTENT: (False,), OTHERS: (True, False)}[selector]
    tokens = ids[0].tolist()
    return [place for place, token in enumerate(tokens) if place != sink and is_structural(model, token) in wanted]


def rows_lose(model: sk.Model, canvas: Callable[[], Tensor], of: Selector, matched: tuple[Selector, ...]) -> Rule:
    """Row by row: the keys of `of` lose what the least of `matched` receives, the others take it up in proportion."""

    def rule(layer: int, weights: Tensor, before: dict[int, Tensor]) -> Tensor:
        for head in range(len(weights) if before else 0):
            sink = top_key(before[layer][head])
            if not strong(before[layer][head], sink, model.causal, LIMIT):
                continue
            mine = members(model, canvas(), sink, of)
            classes = [members(model, canvas(), sink, one) for one in matched]
            for row in weights[head]:
                amount = min(float(row[keys].sum()) for keys in classes)
                had = float(row[mine].sum())
                if 0 < had < 1 and amount > 0:
                    rest = [place for place in range(len(row)) if place not in mine]
                    row[rest] *= (1 - had + amount) / (1 - had)
                    row[mine] *= (had - amount) / had
        return weights

    return rule


class Watched(ByHand):
    """A generation by hand that says which tokens stand on the canvas."""

    canvas: Tensor

    def logits(self, ids: Tensor) -> Tensor:
        self.canvas = ids
        return super().logits(ids)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llada"])
@pytest.mark.parametrize("arm", ARMS)
def test_row_matched_arms_by_hand(arm: str, name: str) -> None:
    model, (of, matched) = sk.load(name), ARMS[arm]
    found, amount = answer(model, sk.Attenuate(of, matched=matched, by=1.0))
    hand = Watched(model, lambda *_: torch.empty(0))
    hand.rule = rows_lose(model, lambda: hand.canvas, of, matched)
    assert found == hand.generate(model.encode(QUESTION), LENGTH)
    assert amount == pytest.approx(hand.removed / hand.rows, abs=2e-4) and amount > 0


def removed_in_each_row(model: sk.Model, of: Selector, matched: tuple[Selector, ...], by: float, ids: Tensor) -> Tensor:
    """What each row of each layer's first masked forward loses, [layer, head, query], from the maps before and after."""
    rows: list[Tensor] = []
    change = sk.Attenuate(of, matched=matched, by=by)

    class First(sk.Attenuate):
        def change(self, call, memory):  # type: ignore[no-untyped-def]
            made = super().change(call, memory)
            if memory.step(call) == 1:
                rows.append(torch.zeros(call.q.shape[1], call.queries) if made is None else lost(call, made))
            return made

    def lost(call, made):  # type: ignore[no-untyped-def]
        before = call.scores().softmax(-1)[0]
        after = (call.scores() + made.bias).softmax(-1)[0]
        return (before - after).clamp(min=0).sum(-1)

    first = First(change.of, matched=change.matched, by=change.by)
    decode = sk.Decode.autoregressive(2, recompute=True) if model.causal else sk.Decode.llada(2, block=2, steps=2)
    with sk.intervene(model, first):
        sk.decode(model, ids, decode)
    return torch.stack(rows)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["tiny-llama", "tiny-llada"]),
    st.lists(st.integers(5, 400), min_size=3, max_size=24),
    st.floats(0.1, 1.0),
)
def test_arms_lose_the_same_in_every_row_at_the_first_masked_forward(name: str, tokens: list[int], by: float) -> None:
    model = sk.load(name)
    ids = torch.tensor([tokens])
    for arms in (("sink of two", "others of two"), ("sink of three", "structural of three", "content of three")):
        lost = [removed_in_each_row(model, *ARMS[arm], by, ids)[0] for arm in arms]  # later layers read other states
        for other in lost[1:]:
            torch.testing.assert_close(lost[0], other, atol=1e-4, rtol=0)


def test_one_other_prompt_key_is_the_same_everywhere_and_no_sink() -> None:
    model = sk.load("tiny-llada")
    ids, prompt = model.encode(QUESTION), model.encode(QUESTION).shape[1]
    change = sk.MaskRandom(1, above=sk.HeadShare(LIMIT), among="prompt", kinds="structural", persist=True, aligned=True)
    with sk.intervene(model, change, record=True) as active:
        sk.decode(model, ids, sk.Decode.llada(LENGTH, block=LENGTH, steps=LENGTH))
    assert active.masked is not None
    picked = [call[0].nonzero().tolist() for call in active.masked]
    places = {key for call in picked for _, key in call}
    assert places and all(key < prompt for key in places)
    assert all(is_structural(model, int(ids[0, key])) for key in places)
    layers = model.config.num_hidden_layers

    def rule(layer: int, weights: Tensor, before: dict[int, Tensor]) -> Tensor:
        if before:
            for head, key in picked[layers * hand.step + layer]:
                sink = top_key(before[layer][head])
                assert key != sink or hand.step > 1  # the first ranking's sink is spared
                assert strong(before[layer][head], sink, False, LIMIT)
                hide(weights, head, [key])
        return weights

    class Counted(ByHand):
        step = -1

        def logits(self, ids: Tensor) -> Tensor:
            self.step += 1
            return super().logits(ids)

    hand = Counted(model, rule)
    found, _ = answer(model, change)
    assert found == hand.generate(ids, LENGTH)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llada"])
def test_all_structural_prompt_keys_but_the_main_sink_by_hand(name: str) -> None:
    model = sk.load(name)
    ids = model.encode(QUESTION)
    spare = sk.MaskSinks(1, per="model")
    change = sk.MaskOthers(spare, kinds="structural", among="prompt", scope="all", persist=True)
    main: list[int] = []

    def rule(layer: int, weights: Tensor, before: dict[int, Tensor]) -> Tensor:
        if before and layer == 0:
            total = torch.stack([maps.sum((0, 1)) for maps in before.values()]).sum(0)
            main.append(int(total.numpy().argmax()))
        structural = [key for key, token in enumerate(ids[0].tolist()) if is_structural(model, token)]
        for head in range(len(weights) if before else 0):
            hide(weights, head, [key for key in structural if key not in (main[0], main[-1])])
        return weights

    found, amount = answer(model, change)
    hand = ByHand(model, rule)
    assert found == hand.generate(ids, LENGTH)
    assert amount == pytest.approx(hand.removed / hand.rows, abs=2e-4) and amount > 0


def test_a_study_file_names_the_arms() -> None:
    above = {"rule": "head_share", "epsilon": LIMIT}
    for of in ("sinks", "others", "structural", "content"):
        matched = ["sinks", "others"] if of == "others" else ["sinks", "structural", "content"]
        (condition,) = Condition.read({"name": "attenuate", "of": of, "matched": matched, "above": above, "by": 1.0})
        assert Condition.from_dict(condition.to_dict()) == condition
    made = condition.seeded(0)
    assert made == sk.Attenuate(CONTENT, matched=(STRONG, STRUCTURAL, CONTENT), by=1.0)
    (others,) = Condition.read({"name": "mask_others", "k": 1, "kinds": "structural", "scope": "all", "per": "model"})
    assert others.seeded(0) == sk.MaskOthers(sk.MaskSinks(1, per="model"), kinds="structural", scope="all")


@pytest.mark.parametrize(
    "words",
    [{"matched": (STRONG,), "to": 0.1}, {"matched": (3,), "by": 0.5}, {"matched": STRONG, "by": 0.5}],
    ids=["to", "no selector", "no list"],
)
def test_what_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(InterventionError):
        sk.Attenuate(STRONG, **words)  # type: ignore[arg-type]


def test_a_call_without_a_decoder_has_no_prompt() -> None:
    model = sk.load("tiny-llada")
    ids = model.encode(QUESTION)
    with sk.intervene(model, sk.MaskSinks(1, among="prompt")):
        model.module(ids)  # the first call has no map before it
        with pytest.raises(InterventionError, match="prompt"):
            model.module(ids)
