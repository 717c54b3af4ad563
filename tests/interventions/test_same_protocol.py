"""Both kinds of model under one protocol: recomputed left-to-right decoding, deleted tokens, and every control by hand."""

from __future__ import annotations

import pytest
import torch
from by_hand import ByHand, Rule, hide, strong, top_key
from eager_twin import decode_by_hand, largest
from torch import Tensor

import sinkscope as sk
from lab.directions import PrefixLlama
from sinkscope.errors import DecodeError, PromptError
from sinkscope.interventions import Intervention
from sinkscope.models.model import Model, pad
from sinkscope.tasks import problems

LENGTH = 12
MODELS = ("tiny-llama", "tiny-llada")
QUESTION = next(iter(problems("arithmetic", n=1, difficulty=2))).prompt


def settings(model: Model) -> sk.Decode:
    """All rows at every step: one token per step, in one block or left to right."""
    if model.causal:
        return sk.Decode.autoregressive(LENGTH, recompute=True)
    return sk.Decode.llada(LENGTH, block=LENGTH, steps=LENGTH)


def answer(model: Model, *changes: Intervention, ids: Tensor | None = None) -> tuple[list[int], float]:
    """Tokens up to the end, and the share of the attention that was taken from the second forward on."""
    ids = model.encode(QUESTION) if ids is None else ids
    first: dict[str, float] = {}
    with sk.intervene(model, *changes) as active:
        done = sk.decode(
            model, ids, settings(model), on_step=lambda step: first.update(vars(active.effect)) if not first else None
        )
    found = done.returned[0].tolist()
    ends = [place for place, token in enumerate(found) if token in model.eos_ids]
    found = found[: ends[0] + 1] if model.causal and ends else found
    taken, seen = (getattr(active.effect, name) - first[name] for name in ("mass", "mass_seen"))
    return found, taken / seen if seen else 0.0


@pytest.mark.parametrize("padded", [False, True])
def test_recomputed_and_cached_decoding_write_the_same_tokens(padded: bool) -> None:
    model = sk.load("tiny-llama")
    texts = [problem.prompt for problem in problems("arithmetic", n=6)] if padded else [QUESTION]
    ids, mask = pad([model.encode(text) for text in texts], model)
    cached, again = (
        sk.decode(model, ids, sk.Decode.autoregressive(32, recompute=recompute), attention_mask=mask)
        for recompute in (False, True)
    )
    assert torch.equal(cached.history, again.history) and cached.forwards == again.forwards


def test_recomputed_rows_are_whole_maps_in_a_trace() -> None:
    model = sk.load("tiny-llama")
    keep = sk.Keep(dtype=torch.float32)
    cached, again = (
        sk.trace(model, QUESTION, sk.Decode.autoregressive(8, recompute=recompute), keep=keep)
        for recompute in (False, True)
    )
    assert cached.text == again.text
    torch.testing.assert_close(again.scores(), cached.scores().cumsum(0), atol=1e-4, rtol=0)
    assert again.queries.sum(1).tolist() == [cached.prompt_length + step for step in range(again.steps)]

    one, other = cached.cumulative(), again.cumulative()
    torch.testing.assert_close(one.received, other.received, atol=1e-4, rtol=0)
    assert torch.equal(one.alive(), other.alive()) and torch.equal(one.queries, other.queries)


def test_recompute_is_for_left_to_right_decoding_only() -> None:
    with pytest.raises(DecodeError, match="recompute"):
        sk.Decode.llada(8, recompute=True)
    kept = sk.Decode.autoregressive(8, recompute=True, delete=(0, -1))
    assert sk.Decode.from_dict(kept.to_dict()) == kept
    assert "recompute" not in sk.Decode.autoregressive(8).to_dict()


@pytest.mark.parametrize("name", MODELS)
def test_a_deleted_token_is_one_that_was_never_there(name: str) -> None:
    model = sk.load(name)
    texts = [problem.prompt for problem in problems("arithmetic", n=3)]
    ids, mask = pad([model.encode(text) for text in texts], model)
    from dataclasses import replace

    done = sk.decode(model, ids, replace(settings(model), delete=(0, -2)), attention_mask=mask)
    for row, text in enumerate(texts):
        own = model.encode(text)[0].tolist()
        del own[-2], own[0]
        alone = sk.decode(model, torch.tensor([own]), settings(model)).returned[0]
        assert done.returned[row].tolist() == alone.tolist()
    trace = sk.trace(model, texts[0], replace(settings(model), delete=(0,)))
    assert trace.prompt_length == model.encode(texts[0]).shape[1] - 1
    for wrong in ((500,), (0, 0), (0, -ids.shape[1])):
        with pytest.raises(PromptError):
            sk.decode(model, ids[:1], replace(settings(model), delete=wrong))


def test_hiding_key_0_from_the_first_row_is_deleting_it() -> None:
    """In a causal model no other row sees row 0, and rotary positions are relative."""
    model = sk.load("tiny-llama")
    hidden, _ = answer(model, sk.MaskPositions((0,)))
    deleted, _ = answer(model, ids=model.encode(QUESTION)[:, 1:])
    assert hidden == deleted


# ---- one cell of every condition by hand ----


def top_hidden(causal: bool, only_strong: bool) -> Rule:
    def rule(layer: int, weights: Tensor, before: dict[int, Tensor]) -> Tensor:
        for head in range(len(weights) if before else 0):
            key = top_key(before[layer][head])
            if not only_strong or strong(before[layer][head], key, causal):
                hide(weights, head, [key])
        return weights

    return rule


def lowered(pick: dict[str, float], causal: bool, place: int | None = None) -> Rule:
    """The top key of each head, or a place, lowered `to` or `by`; the rest of the row scaled up."""

    def rule(layer: int, weights: Tensor, before: dict[int, Tensor]) -> Tensor:
        for head in range(len(weights) if before or place is not None else 0):
            key = top_key(before[layer][head]) if place is None else place
            for query, row in enumerate(weights[head]):
                had = float(row[key])
                kept = min(had, pick["to"]) if "to" in pick else had * (1 - pick["by"])
                if 0 < had < 1 and kept < had:
                    weights[head, query] *= (1 - kept) / (1 - had)
                    weights[head, query, key] = kept
        return weights

    return rule


def instead(place: int, causal: bool) -> Rule:
    def rule(layer: int, weights: Tensor, before: dict[int, Tensor]) -> Tensor:
        for head in range(len(weights) if before else 0):
            key = top_key(before[layer][head])
            if key != place and strong(before[layer][head], key, causal, 0.1):
                hide(weights, head, [place])
        return weights

    return rule


def emptied(layer: int, weights: Tensor, before: dict[int, Tensor]) -> Tensor:
    """A value of 0 is a weight of 0, with nothing renormalised."""
    for head in range(len(weights) if before else 0):
        weights[head, :, top_key(before[layer][head])] = 0.0
    return weights


CELLS = {
    "top key": (sk.MaskSinks(1), lambda causal: top_hidden(causal, False)),
    "strong sinks": (
        sk.MaskSinks(1, above=sk.HeadShare(0.3)), lambda causal: top_hidden(causal, True)
    ),
    "key 1 from the first forward": (
        sk.MaskPositions((1,)), lambda causal: lowered({"to": 0.0}, causal, 1)
    ),
    "attenuate to": (sk.Attenuate(sk.MaskSinks(1), to=0.1), lambda causal: lowered({"to": 0.1}, causal)),
    "attenuate by": (sk.Attenuate(sk.MaskSinks(1), by=0.7), lambda causal: lowered({"by": 0.7}, causal)),
    "attenuate a position": (
        sk.Attenuate(sk.MaskPositions((3,)), to=0.0), lambda causal: lowered({"to": 0.0}, causal, 3)
    ),
    "another token in the same heads": (
        sk.MaskInstead(sk.MaskSinks(1, above=sk.HeadShare(0.1)), (2,)), lambda causal: instead(2, causal)
    ),
    "value emptied": (sk.ZeroValues(sk.MaskSinks(1)), lambda causal: emptied),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_of_each_condition_by_hand(cell: str, name: str) -> None:
    model = sk.load(name)
    change, rule = CELLS[cell]
    found, dose = answer(model, change)
    hand = ByHand(model, rule(model.causal))
    assert found == hand.generate(model.encode(QUESTION), LENGTH)
    assert dose == pytest.approx(hand.removed / hand.rows, abs=2e-4)
    if cell not in ("strong sinks",):
        assert dose > 0


@pytest.mark.parametrize("cell", ["top key", "attenuate by", "value emptied"])
def test_masking_behind_a_prompt_that_is_read_both_ways_by_hand(cell: str) -> None:
    model = sk.load("tiny-llama")
    plain = answer(model)[0]
    model.family = PrefixLlama()
    change, rule = CELLS[cell]
    ids = model.encode(QUESTION)
    found, dose = answer(model, change)
    hand = ByHand(model, rule(False), both_ways=ids.shape[1])
    assert found == hand.generate(ids, LENGTH) and found != plain
    assert dose == pytest.approx(hand.removed / hand.rows, abs=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_persistent_aligned_random_keys_by_hand(name: str) -> None:
    model = sk.load(name)
    change = sk.MaskRandom(k=2, per="model", persist=True, aligned=True, seed=3)
    layers = model.config.num_hidden_layers
    masked = [call[0] for call in _masked(model, change)]
    assert not any(bool(call.any()) for call in masked[:layers])
    keys = {tuple(head.nonzero().flatten().tolist()) for call in masked[layers:] for head in call}
    assert len(keys) == 1 and len(next(iter(keys))) == 2  # the same two keys at all steps, in all layers and heads
    places = list(next(iter(keys)))

    def rule(layer: int, weights: Tensor, before: dict[int, Tensor]) -> Tensor:
        for head in range(len(weights) if before else 0):
            hide(weights, head, places)
        return weights

    found, dose = answer(model, change)
    hand = ByHand(model, rule)
    assert found == hand.generate(model.encode(QUESTION), LENGTH)
    assert dose == pytest.approx(hand.removed / hand.rows, abs=2e-4)
    others = {
        tuple(call[0, 0].nonzero().flatten().tolist())
        for seed in range(4)
        for call in _masked(model, sk.MaskRandom(k=2, per="model", persist=True, aligned=True, seed=seed))[-1:]
    }
    assert len(others) > 1


def test_random_keys_avoid_the_sinks_of_the_first_ranking() -> None:
    model = sk.load("tiny-llada")
    layers = model.config.num_hidden_layers
    first, held = (
        _masked(model, change)[layers:] for change in (sk.MaskSinks(3), sk.MaskRandom(3, persist=True))
    )  # the first forward masks nothing, so that both have ranked the same maps at the second
    for layer in range(layers):
        assert bool(held[layer].any()) and not bool((first[layer] & held[layer]).any())
        assert all(torch.equal(held[layer], later) for later in held[layer::layers])


def _masked(model: Model, change: Intervention) -> list[Tensor]:
    """bool [batch, head, key] of every call, in order."""
    with sk.intervene(model, change, record=True) as active:
        sk.decode(model, model.encode(QUESTION), settings(model))
    assert active.masked is not None
    return active.masked


def test_many_random_keys_that_avoid_only_the_main_sink() -> None:
    model = sk.load("tiny-llada")
    layers, keys = model.config.num_hidden_layers, model.encode(QUESTION).shape[1] + LENGTH
    main = _masked(model, sk.MaskSinks(1, per="model"))[layers]
    most = _masked(model, sk.MaskRandom(keys - 1, per="model", persist=True, aligned=True, avoid=1))[layers]
    assert torch.equal(most, ~main)
    assert not bool(_masked(model, sk.MaskRandom(keys - 1, per="model"))[layers][0, 0].sum() > 1)


def test_recompute_is_left_out_where_all_rows_are_computed_anyway() -> None:
    model = sk.load("tiny-llada")
    plain = model.generate(QUESTION, length=16)
    assert model.generate(QUESTION, length=16, recompute=True) == plain
    with pytest.raises(DecodeError, match="recompute"):
        model.generate(QUESTION, length=16, recompute=True, cache="prefix")


def test_a_prefix_cache_under_masking_by_hand() -> None:
    """The diffusion model under the autoregressive protocol: rows before the block stay as they were computed."""
    model = sk.load("tiny-llada")
    ids = model.encode(QUESTION)
    cached = sk.Decode.llada(16, block=8, steps=16, cache="prefix")
    with sk.intervene(model, sk.MaskSinks(1)):
        found = sk.decode(model, ids, cached).tokens
    by_hand, _ = decode_by_hand(
        model, ids, cached, lambda head: largest(head.own, 1), lambda tokens: ["word"] * len(tokens)
    )
    assert torch.equal(found, by_hand)
