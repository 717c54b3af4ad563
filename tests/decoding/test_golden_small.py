"""Every generation of the small golden sets: tokens, canvases, counts of forwards and received attention are the authors'."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from golden_sets import HERE, SMALL, SmallGolden, small, small_cases, small_sets
from sinkscope.decoding import Step, decode

COUNTS = {"mdlm": 22, "bd3lm": 30, "gidd": 20, "gidd_v2": 16, "sedd": 6}
SUMS = 5e-5
FLOAT32 = sk.Keep(dtype=torch.float32)


def test_the_committed_set_is_whole() -> None:
    here = [found for _, found in small_sets() if found.folder.parent == HERE / "small"]
    assert {found.family: len(found.facts["generation"]) for found in here} == COUNTS


def run(found: SmallGolden, case: dict[str, Any]) -> tuple[Any, list[Step], list[Tensor]]:
    """The generation, its steps, and what each key received in each attention call [batch, head, key]."""
    model, steps = found.model_for(case), list[Step]()
    watch = None if len(found.prompt(case)[0]) > 1 and "start" in case else steps.append
    with sk.observe(model) as seen, sk.intervene(model, *found.interventions(case)):
        done = decode(model, found.prompt(case)[0], found.settings(case), on_step=watch)
    return done, steps, [one.sum(2) for one in seen.received]


@pytest.mark.parametrize(("found", "case"), small_cases("generation", "mdlm", "gidd", "sedd"))
def test_whole_canvas(found: SmallGolden, case: dict[str, Any]) -> None:
    done, steps, _ = run(found, case)
    assert torch.equal(done.tokens, found.tensor(case["output"]))
    assert done.forwards == case["forwards"]
    if steps:
        assert len(steps) == case["forwards"] <= found.settings(case).most_steps
    if case.get("predictor") == "semi_ar":
        return
    canvases = found.tensor(case["canvas"])
    if "forward_made" in case:
        canvases = canvases[torch.tensor(case["forward_made"]).bool()]
    if canvases.shape[1] == done.history.shape[1]:  # texts are corrected one after the other
        assert torch.equal(done.history[: len(canvases)], canvases)


@pytest.mark.parametrize(("found", "case"), small_cases("generation", "bd3lm"))
def test_block_after_block(found: SmallGolden, case: dict[str, Any]) -> None:
    if case["output"] is None:
        with pytest.raises(sk.SinkscopeError, match="repeats itself"):
            run(found, case)
        return
    done, steps, _ = run(found, case)
    assert torch.equal(done.tokens, found.tensor(case["output"]))
    stored = case["forwards_store"]
    if "prompt" in case and case["kv_cache"]:
        stored = done.forwards - case["forwards_denoise"]  # a prompt's blocks are stored here
    assert done.forwards == case["forwards_denoise"] + stored
    assert len(steps) == case["forwards_denoise"] == case["reported_nfe"]
    if case["canvas"] is not None:
        made = [*(one == "1" for one in case["forward_made"]), True]
        assert torch.equal(done.history, found.tensor(case["canvas"])[torch.tensor(made)])


@pytest.mark.parametrize(("found", "case"), small_cases("generation", "gidd_v2"))
def test_canvas_of_noise(found: SmallGolden, case: dict[str, Any]) -> None:
    done, steps, _ = run(found, case)
    assert torch.equal(done.tokens, found.tensor(case["output"]))
    calls = [length for _, length in case["calls"] if length]  # an empty prefix needs no forward
    assert done.forwards == len(calls)
    assert len(steps) == case["forwards_denoise"] <= found.settings(case).most_steps
    before, size, start = found.tensor(case["block_before"]), case["block_length"], found.prompt(case)[0].shape[1]
    number = 0
    for update, block in enumerate(before):
        first = update % case["steps"] == 0
        if first or not torch.equal(block, before[update - 1]):
            left = start + update // case["steps"] * size
            assert torch.equal(done.history[number, :, left : left + size], block)
            number += 1
    assert number == len(steps)


def with_sums(*families: str) -> list[Any]:
    cases = small_cases("generation", *families)
    return [one for one in cases if one.values[1].get("received_attention_per_forward")]


@pytest.mark.parametrize(("found", "case"), with_sums())
def test_received_in_every_forward(found: SmallGolden, case: dict[str, Any]) -> None:
    theirs = found.tensor(case["received_attention_per_forward"])  # −1 where there is no key
    done, _, calls = run(found, case)
    layers, width = int(found.model.config.num_hidden_layers), theirs.shape[-1]
    padded = [torch.nn.functional.pad(one, (0, width - one.shape[-1])) for one in calls]
    mine = torch.stack(padded).view(done.forwards, layers, *padded[0].shape)
    torch.testing.assert_close(mine, theirs.clamp(min=0), atol=SUMS, rtol=0)


@pytest.mark.parametrize("family", SMALL)
def test_trace_sinks_masking_and_controls(family: str) -> None:
    """The same calls as for every other family; no key gets more than 1 from each query that sees it."""
    found = small(family)
    ids = torch.tensor([[7, 8, 9, 10, 11, 12]])
    words: dict[str, Any] = {"length": 8, "steps": 6, "seed": 1, "keep": FLOAT32}
    if family in ("bd3lm", "gidd_v2"):
        words["block"] = 4
    plain = sk.trace(found.model, ids, **words)
    assert isinstance(plain, sk.Trace) and plain.sinks(sk.Threshold(1.0)).height and plain.heads().height
    assert bool((plain.scores() <= plain.seen_by()[:, None, None] + 1e-3).all())
    assert plain.part_steps("answer").stop > 0
    total = plain.scores().sum(-1)
    if plain.built_in is not None:
        total = total + plain.built_in.sum(-1)
    torch.testing.assert_close(total, plain.query_count()[:, None, None].expand_as(total).float(), atol=1e-3, rtol=0)
    for control in (sk.MaskSinks(k=0), sk.MaskPositions(())):
        same = sk.trace(found.model, ids, interventions=[control], **words)
        assert isinstance(same, sk.Trace) and torch.equal(same.canvas, plain.canvas)
    for change in (sk.MaskSinks(k=1), sk.MaskRandom(k=1), sk.MaskRandom(k=1, match="mass"), sk.MaskPositions((1,))):
        with sk.intervene(found.model, change) as active:
            made = sk.trace(found.model, ids, **words)
        assert isinstance(made, sk.Trace) and active.effect.keys and not active.effect.leak
        if isinstance(change, sk.MaskPositions):
            assert float(made.scores()[..., 1].max()) == 0


@pytest.mark.parametrize("family", SMALL)
def test_a_trace_is_saved_and_keeps_the_lens(family: str, tmp_path: Any) -> None:
    model = small(family).model
    keep = sk.Keep(lens=True, maps=((1, 2),), channels=2, hidden_norms=True, value_norms=True)
    made = sk.trace(model, torch.tensor([[7, 8, 9, 10]]), length=4, steps=4, seed=1, keep=keep)
    assert isinstance(made, sk.Trace) and made.lens_tokens is not None and made.maps is not None
    again = sk.Trace.load(made.save(tmp_path / "trace.safetensors"))
    assert torch.equal(again.canvas, made.canvas) and again.settings == made.settings
    rows = made.maps[0].float().sum(1)  # what each key received by the map, [step, key]
    kept = made.received[:, 1, 2].float().sum(1) if made.received is not None else rows
    torch.testing.assert_close(rows, kept, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("place", ["resid_pre", "attn_out", "mlp_out", "resid_post", "q", "k", "v", "z"])
@pytest.mark.parametrize("family", SMALL)
def test_hooks_stand_at_every_place(family: str, place: str) -> None:
    model, seen = small(family).model, list[int]()
    ids = torch.tensor([[7, 8, 9, 10]])
    plain = model.logits(ids)
    with sk.hook(model, place, lambda state, context: seen.append(context.layer)):
        assert torch.equal(model.logits(ids), plain)
    assert seen == list(range(3))
    with sk.hook(model, f"layers.1.{place}", lambda state, context: state * 1.5):
        assert not torch.equal(model.logits(ids), plain)


def test_what_is_added_to_the_stream_is_what_attention_and_mlp_hand_out() -> None:
    for family in SMALL:
        states = dict[str, Tensor]()
        with sk.hook(
            small(family).model,
            [f"layers.1.{name}" for name in ("resid_pre", "attn_out", "mlp_out", "resid_post")],
            lambda state, context, into=states: into.__setitem__(context.place, state),
        ):
            small(family).model.logits(torch.tensor([[7, 8, 9, 10]]))
        total = states["resid_pre"] + states["attn_out"] + states["mlp_out"]
        torch.testing.assert_close(total, states["resid_post"], atol=1e-5, rtol=1e-5)


def test_the_built_in_key_is_named_masked_and_counted_apart() -> None:
    model = small("gidd_v2").model
    ids, words = torch.tensor([[7, 8, 9, 10]]), {"length": 8, "block": 4, "steps": 6, "seed": 1}
    plain = sk.trace(model, ids, keep=FLOAT32, **words)
    assert isinstance(plain, sk.Trace)
    table = plain.built_in_key()
    assert set(table["token"]) == {"built-in"} and 0 < table["share"].max() <= 1
    assert "built-in" not in plain.tokens()["token"].to_list()
    hidden = sk.trace(model, ids, keep=FLOAT32, interventions=[sk.MaskBuiltIn()], **words)
    assert isinstance(hidden, sk.Trace) and hidden.built_in is not None and float(hidden.built_in.max()) == 0
    one = sk.trace(model, ids, keep=FLOAT32, interventions=[sk.MaskBuiltIn(layers=(1,))], **words)
    assert isinstance(one, sk.Trace) and one.built_in is not None
    assert [bool(one.built_in[:, layer].max() > 0) for layer in range(3)] == [True, False, True]
    with sk.intervene(model, sk.MaskBuiltIn()) as active:
        decode(model, ids, plain.settings)
    assert active.effect.mass > 0
    short = sk.trace(model, ids, keep=sk.Keep(form="summary"), **words)
    assert isinstance(short, sk.Trace) and short.built_in is not None
    with pytest.raises(sk.SinkscopeError, match="built-in key"), sk.intervene(small("gidd").model, sk.MaskBuiltIn()):
        small("gidd").model.logits(ids)


def test_a_prompts_blocks_are_in_the_cache_too() -> None:
    found = small("bd3lm")
    ids = torch.tensor([[305, 8, 9, 10, 11, 12]])
    settings = sk.Decode.bd3lm_dit(length=14, block=4, seed=3)
    cached = decode(found.model, ids, settings)
    whole = decode(found.model, ids, sk.Decode.bd3lm_dit(length=14, block=4, seed=3, cache=None))
    assert torch.equal(cached.tokens, whole.tokens) and cached.forwards == whole.forwards + 5


@pytest.mark.parametrize("family", SMALL)
def test_text_may_begin_with_nothing(family: str) -> None:
    model = small(family).model
    done = decode(model, torch.empty(1, 0, dtype=torch.int64), model.defaults.changed({"length": 8, "steps": 8}))
    assert len(done.returned[0]) == 8
    made = sk.trace(model, torch.empty(1, 0, dtype=torch.int64), length=8, steps=8)
    assert isinstance(made, sk.Trace) and made.received is not None


REFUSED = {
    "rows": (("bd3lm", {"length": 4}), 2, "one text at a time"),
    "temperature": (("gidd_v2", {"length": 4, "method": "ancestral", "noise_type": -1000.0}), 1, "adaptive"),
    "canvas": (("gidd_v2", {"length": 4, "canvas": 6}), 1, "within the canvas"),
}


@pytest.mark.parametrize(("asked", "rows", "why"), REFUSED.values(), ids=REFUSED)
def test_settings_that_cannot_work_are_refused(asked: tuple[str, dict[str, Any]], rows: int, why: str) -> None:
    model = small(asked[0]).model
    with pytest.raises(sk.SinkscopeError, match=why):
        decode(model, torch.tensor([[305, 8, 9, 10]] * rows).remainder(150), model.defaults.changed(asked[1]))


def test_semi_autoregressive_needs_its_window() -> None:
    for words in ({}, {"window": 4}, {"window": 4, "stride": 5}):
        with pytest.raises(sk.SinkscopeError, match="window and stride"):
            sk.Decode.mdlm_dit(length=8, predictor="semi_ar", **words)
    with pytest.raises(sk.SinkscopeError, match="no effect"):
        sk.Decode.mdlm_dit(length=8, window=4)
