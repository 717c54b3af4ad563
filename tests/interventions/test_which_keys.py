"""Which keys a ranking takes, against plain eager attention and plain Python: same keys, same tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from eager_twin import Choose, Head, decode_by_hand, largest
from hypothesis import given, settings
from hypothesis import strategies as st

import sinkscope as sk
from sinkscope.attention.call import Call, untouched_columns
from sinkscope.attention.forward import Forward
from sinkscope.interventions.memory import Layer, Memory
from sinkscope.sinks.kinds import KINDS, STRUCTURAL

PROMPT = "Ann has 3 apples. Then Ann finds 4.\nHow many apples are left?"
DIFFUSION = sk.Decode.llada(length=8, block=4, steps=8)
LEFT_TO_RIGHT = sk.Decode.autoregressive(length=8)
STRONG = 0.15  # of what a query gives; few keys of the tiny models draw more


@cache
def loaded(name: str) -> sk.Model:
    return sk.load(name)


def kinds_by_hand(model: sk.Model) -> Any:
    """The kinds of these models' few special tokens and of everything else, without sinkscope's tables."""
    tokenizer: Any = model.tokenizer
    names = {"<|startoftext|>": "begin", "<|eot_id|>": "end", "<|endoftext|>": "end", "<|start_header_id|>": "template",
             "<|end_header_id|>": "template"}  # fmt: skip

    def kinds(ids: list[int]) -> list[str]:
        found = []
        for place, i in enumerate(ids):
            text = tokenizer.convert_ids_to_tokens(i)
            if i == model.mask_id:
                found.append("mask")
            elif text in names:
                found.append(names[text])
            elif place and tokenizer.convert_ids_to_tokens(ids[place - 1]) == "<|start_header_id|>":
                found.append("template")  # user, assistant
            elif "\n" in text:
                found.append("newline")
            elif any(c.isalpha() for c in text):
                found.append("word")
            elif any(c.isdigit() for c in text):
                found.append("digit")
            else:
                found.append("punctuation" if text.strip() else "space")
        return found

    return kinds


def median(norms: list[float]) -> float:
    return sorted(norms)[(len(norms) - 1) // 2]


def of_layer(head: Head) -> list[float]:
    return [sum(column) for column in zip(*head.columns[head.layer], strict=True)]


def of_model(head: Head) -> list[float]:
    return [sum(column) for column in zip(*(one for layer in head.columns for one in layer), strict=True)]


def strong(head: Head) -> set[int]:
    return {place for place, score in enumerate(head.own) if score / max(head.seen[place], 1) > STRONG}


def per_row(head: Head) -> list[float]:
    return [score / max(count, 1) for score, count in zip(head.own, head.seen, strict=True)]


CASES: dict[str, tuple[dict[str, Any], Choose]] = {
    "plain": ({"k": 2}, lambda head: largest(head.own, 2)),
    "last row": ({"k": 2, "rows": "last"}, lambda head: largest(head.last[head.layer][head.head], 2)),
    "structural": ({"k": 1, "kinds": "structural"}, lambda head: largest(head.own, 1, lambda i: head.kinds[i] in STRUCTURAL)),
    "content": ({"k": 2, "kinds": "content"}, lambda head: largest(head.own, 2, lambda i: head.kinds[i] not in STRUCTURAL)),
    "listed": (
        {"k": 1, "kinds": ["newline", "template"]},
        lambda head: largest(head.own, 1, lambda i: head.kinds[i] in ("newline", "template")),
    ),
    "low norm": (
        {"k": 2, "value_norm": "low"},
        lambda head: largest(head.own, 2, lambda i: head.norms[i] <= median(head.norms)),
    ),
    "high norm": (
        {"k": 2, "value_norm": "high"},
        lambda head: largest(head.own, 2, lambda i: head.norms[i] > median(head.norms)),
    ),
    "per layer": ({"k": 2, "per": "layer"}, lambda head: largest(of_layer(head), 2)),
    "per model": ({"k": 2, "per": "model"}, lambda head: largest(of_model(head), 2)),
    "above": ({"k": 2, "above": sk.HeadShare(STRONG)}, lambda head: largest(head.own, 2) & strong(head)),
    "below": ({"k": 1, "below": sk.HeadShare(STRONG)}, lambda head: set() if strong(head) else largest(head.own, 1)),
    "per row": (
        {"k": 1, "score": "per_row"},
        lambda head: largest(per_row(head), 1, lambda i: head.seen[i] >= 4),
    ),
    "all at once": (
        {"k": 1, "kinds": "content", "value_norm": "low", "per": "layer", "below": sk.HeadShare(STRONG)},
        lambda head: set() if strong(head) else largest(
            of_layer(head), 1, lambda i: head.kinds[i] not in STRUCTURAL and head.norms[i] <= median(head.norms)
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-llama"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_keys_and_tokens_as_plain_eager_attention(name: str, case: str) -> None:
    model = loaded(name)
    words, choose = CASES[case]
    ids = model.encode(PROMPT)
    decoding = LEFT_TO_RIGHT if model.causal else DIFFUSION
    expected, keys = decode_by_hand(model, ids, decoding, choose, kinds_by_hand(model))
    with sk.intervene(model, sk.MaskSinks(**words), record=True) as active:
        done = sk.decode(model, ids, decoding)
    assert active.masked is not None
    found = [{(head, key) for _, head, key in masked.nonzero().tolist()} for masked in active.masked]
    assert found == keys
    assert any(keys), "the case hides nothing"
    assert torch.equal(done.tokens, expected)
    assert active.effect.leak == 0


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-llama"])
@pytest.mark.parametrize("since", ["first", "second"])
@pytest.mark.parametrize("places", [(0,), (0, 5)])
def test_positions_since_when_as_plain_eager_attention(name: str, since: str, places: tuple[int, ...]) -> None:
    model = loaded(name)
    ids, decoding = model.encode(PROMPT), LEFT_TO_RIGHT if model.causal else DIFFUSION
    always = frozenset(places) if since == "first" else frozenset()
    expected, keys = decode_by_hand(model, ids, decoding, lambda _: set(places), kinds_by_hand(model), always)
    with sk.intervene(model, sk.MaskPositions(places, since=since), record=True) as active:  # type: ignore[arg-type]
        done = sk.decode(model, ids, decoding)
    # What is recorded begins with the first call that hides anything.
    found = [{(head, key) for _, head, key in masked.nonzero().tolist()} for masked in active.masked or ()]
    assert found == [hidden for hidden in keys if hidden]
    assert torch.equal(done.tokens, expected)


def test_key_0_hidden_from_the_first_row_is_the_text_without_its_first_token() -> None:
    """Positions are relative: what cannot be seen by anyone might as well not be there."""
    model, ids = loaded("tiny-llama"), loaded("tiny-llama").encode(PROMPT)
    with torch.inference_mode(), sk.intervene(model, sk.MaskPositions((0,))):
        hidden = model.module(ids).logits[:, 1:]
    with torch.inference_mode():
        shorter = model.module(ids[:, 1:]).logits
        whole = model.module(ids).logits[:, 1:]
    torch.testing.assert_close(hidden, shorter, atol=1e-4, rtol=1e-4)
    assert float((hidden - whole).abs().max()) > 1e-2


def test_above_and_below_share_the_heads_between_them() -> None:
    model, ids = loaded("tiny-llada"), loaded("tiny-llada").encode(PROMPT)
    taken = []
    for words in ({"above": sk.HeadShare(STRONG)}, {"below": sk.HeadShare(STRONG)}, {}):
        one_step = sk.Decode.llada(
            length=8, block=8, steps=2
        )  # the second forward sees the same first map in all three
        with sk.intervene(model, sk.MaskSinks(k=1, **words), record=True) as active:
            sk.decode(model, ids, one_step)
        taken.append(active.masked[6])  # layer 0 of the second forward, whose input is the same in all three
    above, below, both = taken
    assert not (above & below).any() and torch.equal(above | below, both)
    assert bool(above.any()) or bool(below.any())


def test_columns_so_far_do_not_depend_on_the_cache() -> None:
    """A causal model that computes all rows anew at every forward ranks as one that keeps them."""
    model, ids = loaded("tiny-llama"), loaded("tiny-llama").encode(PROMPT)
    from sinkscope.attention.forward import PROMPT as GROUP
    from sinkscope.attention.forward import forward_context

    for score in ("sum", "per_row"):
        masked = []
        for cached in (True, False):
            from transformers import DynamicCache

            cache, run = (DynamicCache(config=model.config) if cached else None), object()
            change = sk.MaskSinks(k=2, score=score, layers=(0,))  # below layer 0 a hidden key changes what follows
            with torch.inference_mode(), sk.intervene(model, change, record=True) as active:
                for step, stop in enumerate(range(12, 16)):
                    start = 0 if step == 0 or not cached else stop - 1
                    labels = torch.full((1, stop - start), GROUP)
                    with forward_context(Forward(run, step, labels, 1, start, None, 12, causal=True)):
                        model.module(ids[:, start:stop], past_key_values=cache, use_cache=cached,
                                     position_ids=torch.arange(start, stop)[None])  # fmt: skip
            masked.append(list(active.masked[:: model.config.num_hidden_layers]))
        for with_cache, without in zip(*masked, strict=True):
            assert torch.equal(with_cache, without)
        assert masked[0][-1].any()


def test_the_newest_keys_do_not_win_per_row() -> None:
    """A key that one row has seen got all of that row's attention that is left: it must not count as the top sink."""
    model, ids = loaded("tiny-llama"), loaded("tiny-llama").encode(PROMPT)
    with sk.intervene(model, sk.MaskSinks(k=1, score="per_row"), record=True) as active:
        sk.decode(model, ids, LEFT_TO_RIGHT)
    for masked in active.masked[6:]:
        assert not masked[..., -4:].any() and masked.any()


# ---- the random twins ----


def made_call(
    rows: int, heads: int, keys: int, seed: int, row_seeds: tuple[int, ...] | None = None
) -> tuple[Call, Memory]:
    """A call whose last forward is known: columns of 30 queries, kinds by id."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, rows, heads, keys, 4, generator=draw)
    ids = torch.randint(0, len(KINDS), (rows, keys), generator=draw)
    forward = Forward(
        "run", 1, torch.zeros(rows, keys, dtype=torch.long), rows, 0, None, 3, ids=ids, row_seeds=row_seeds
    )
    call = Call(0, q, k, v, None, False, None, forward, lambda: q, False)
    before = torch.rand(rows, heads, keys, generator=draw)
    layer = Layer({("clean", "all"): before}, torch.full((rows,), keys))
    return call, Memory({0: layer}, {0: 1}, "run", kinds_of=lambda tokens: tokens)


WORDS = st.fixed_dictionaries(
    {},
    optional={
        "kinds": st.sampled_from(["structural", "content", ("word", "mask", "digit")]),
        "value_norm": st.sampled_from(["low", "high"]),
        "per": st.sampled_from(["head", "layer"]),
        "above": st.sampled_from([sk.HeadShare(0.01), sk.Threshold(0.2, unit="uniform")]),
        "below": st.sampled_from([sk.HeadShare(0.06)]),
    },
)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.integers(0, 10**6), st.integers(1, 4))
def test_random_keys_are_as_many_of_the_same_kind_and_never_the_sinks(words: dict[str, Any], seed: int, k: int) -> None:
    call, memory = made_call(2, 3, 24, seed)
    ranking = sk.MaskSinks(k=k, **words).ranking(call, memory)
    assert ranking is not None
    sinks, eligible = ranking.sinks[0], ranking.eligible[0]
    for match in ("count", "mass"):
        picked = sk.MaskRandom(k=k, seed=seed, match=match, **words).select(call, memory)
        assert picked is not None
        assert not (picked & sinks).any() and not (picked & ~eligible).any()
        if match == "count":
            room = (eligible & ~sinks).sum(-1)
            assert torch.equal(picked.sum(-1), torch.minimum(sinks.sum(-1), room))


def test_random_mass_of_a_kind_is_that_of_its_sinks_on_average() -> None:
    call, memory = made_call(1, 2, 40, 3)
    words: dict[str, Any] = {"k": 2, "kinds": "content"}
    ranking = sk.MaskSinks(**words).ranking(call, memory)
    assert ranking is not None
    now = untouched_columns(call).sum(2)
    sinks, eligible = ranking.sinks[0], ranking.eligible[0]
    target = (now * sinks).sum(-1)
    room = (now * (eligible & ~sinks)).sum(-1)
    assert bool((room > 2 * target).all())  # else it could not be matched
    taken = []
    for seed in range(400):
        picked = sk.MaskRandom(match="mass", seed=seed, **words).select(call, memory)
        assert picked is not None
        taken.append((now * picked).sum(-1))
    torch.testing.assert_close(torch.stack(taken).mean(0), target, rtol=0.08, atol=0.05)


def test_rows_draw_by_their_own_seeds() -> None:
    change = sk.MaskRandom(k=3, seed=5)
    shared, memory = made_call(3, 2, 24, 1)
    memory.layers[0].scores["clean", "all"][:] = memory.layers[0].scores["clean", "all"][
        :1
    ]  # the same sinks in all rows
    together = change.select(shared, memory)
    assert together is not None and torch.equal(together[0], together[1])
    own, _ = made_call(3, 2, 24, 1, row_seeds=(7, 8, 7))
    apart = change.select(own, memory)
    assert apart is not None
    assert torch.equal(apart[0], apart[2]) and not torch.equal(apart[0], apart[1])
    alone, _ = made_call(1, 2, 24, 1, row_seeds=(8,))
    memory.layers[0].scores["clean", "all"] = memory.layers[0].scores["clean", "all"][:1]
    memory.layers[0].queries = memory.layers[0].queries[:1]
    single = change.select(alone, memory)
    assert single is not None and torch.equal(single[0], apart[1])  # a row draws what it draws alone
