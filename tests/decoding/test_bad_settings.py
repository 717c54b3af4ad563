"""Settings and prompts that cannot work give one clear sentence before any forward is made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from golden_sets import golden
from made_models import make_llada, save_tokenizer
from sinkscope.decoding import Decode, decode, resolve_settings
from sinkscope.errors import DecodeError, PromptError, SinkscopeError, TokenizerError
from sinkscope.models import load
from sinkscope.tracing import trace

SETTINGS: list[tuple[str, Callable[[], Decode], str]] = [
    ("length by block", lambda: Decode.llada(length=30, block=8), r"length 30 and block 8.*try length 24 or block"),
    ("steps by blocks", lambda: Decode.llada(length=32, block=8, steps=10), r"4 blocks.*got 10.*try 8"),
    ("steps above length", lambda: Decode.llada(length=8, steps=16), "16 steps for length 8"),
    ("length zero", lambda: Decode.llada(length=0), "length"),
    ("length a float", lambda: Decode.llada(length=8.0), "length"),  # type: ignore[arg-type]
    ("negative temperature", lambda: Decode.llada(length=8, temperature=-1), "temperature"),
    ("temperature NaN", lambda: Decode.llada(length=8, temperature=float("nan")), "temperature"),
    ("top_p above 1", lambda: Decode.dream(length=8, top_p=1.5), "top_p"),
    ("unknown algorithm", lambda: Decode.dream(length=8, algorithm="best"), "maskgit_plus"),
    ("unknown noise", lambda: Decode.llada(length=8, noise="loud"), "per_row"),
    ("unknown cache", lambda: Decode.parallel(length=8, cache="big"), "prefix"),  # type: ignore[arg-type]
    ("cache with guidance", lambda: Decode.parallel(length=8, cache="dual", guidance=1.0), "Guidance"),
    ("cache with dream", lambda: Decode.dream(length=8, cache="dual"), "cache"),
    ("seed a float", lambda: Decode.llada(8, seed=1.5), "seed"),
    ("seed negative", lambda: Decode.llada(8, seed=-1), "seed"),
    ("seed too large", lambda: Decode.llada(8, seed=2**80), "seed"),
    ("seed of 10,000 digits", lambda: Decode.llada(8, seed=10**10_000), "seed"),
    ("seed None", lambda: Decode.llada(8, seed=None), "seed"),
    ("seed a truth", lambda: Decode.llada(8, seed=True), "seed"),
    ("a word that is none", lambda: Decode.llada(8, lenght=9), "lenght"),
    ("no length", lambda: Decode.dream(steps=8), "length"),  # type: ignore[call-arg]
    ("a word twice", lambda: Decode.llada(8, length=8), "length"),  # type: ignore[misc]
    ("another family's name", lambda: Decode.sdar(8, family="llada"), "family"),
    ("algorithm a list", lambda: Decode.dream(8, algorithm=[]), "algorithm"),  # type: ignore[arg-type]
    ("a token id without end", lambda: Decode.llada(8, eos_id=10**30), "eos_id"),
    ("a truth for a token id", lambda: Decode.llada(8, eos_id=True), "eos_id"),
    ("temperature in words", lambda: Decode.llada(8, temperature="hot"), "temperature.*'hot'"),  # type: ignore[arg-type]
    ("temperature infinite", lambda: Decode.llada(8, temperature=float("inf")), "temperature"),
    ("temperature None", lambda: Decode.llada(8, temperature=None), "temperature"),  # type: ignore[arg-type]
    ("length None", lambda: Decode.llada(None), "length"),  # type: ignore[arg-type]
    ("length without end", lambda: Decode.llada(10**15, block=7), "length must be"),
    ("stop_ids a number", lambda: Decode.sdar(8, stop_ids=7), "stop_ids"),  # type: ignore[arg-type]
    ("settings a list", lambda: Decode.from_dict([1]), "family and length"),  # type: ignore[arg-type]
    ("settings without length", lambda: Decode.from_dict({"family": "llada"}), "family and length"),
    ("unknown field", lambda: Decode.from_dict({"family": "llada", "length": 8, "lenght": 9}), "lenght"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), [case[1:] for case in SETTINGS], ids=[case[0] for case in SETTINGS])
def test_settings(make: Callable[[], Decode], words: str) -> None:
    with pytest.raises(DecodeError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_dream_may_have_more_steps_than_tokens() -> None:
    """Its schedule is a share of the masks, so spare steps commit nothing; the authors allow it."""
    assert Decode.dream(length=8, steps=20).steps == 20


PROMPTS: list[tuple[str, torch.Tensor, torch.Tensor | None, str]] = [
    ("empty", torch.zeros(1, 0, dtype=torch.int64), None, "at least one token"),
    ("one axis", torch.ones(4, dtype=torch.int64), None, r"\[batch, position\]"),
    ("floats", torch.ones(1, 4), None, "integer"),
    ("id too large", torch.full((1, 4), 5000), None, "tokenizer"),
    ("negative id", torch.full((1, 4), -1), None, "from 0"),
    ("beyond the context", torch.ones(1, 250, dtype=torch.int64), None, "256 positions"),
    ("mask of another shape", torch.ones(1, 4, dtype=torch.int64), torch.ones(1, 3), r"\(1, 4\)"),
    ("padding at the right", torch.ones(1, 4, dtype=torch.int64), torch.tensor([[1, 1, 1, 0]]), "left"),
    ("nothing but padding", torch.ones(1, 4, dtype=torch.int64), torch.zeros(1, 4), "left"),
]


@pytest.mark.parametrize(("ids", "mask", "words"), [case[1:] for case in PROMPTS], ids=[case[0] for case in PROMPTS])
def test_prompts(ids: torch.Tensor, mask: torch.Tensor | None, words: str) -> None:
    with pytest.raises(PromptError, match=words) as caught:
        decode(golden("llada").model, ids, Decode.llada(length=8), attention_mask=mask)
    assert "\n" not in str(caught.value)


def test_options_that_need_a_token_which_the_model_lacks() -> None:
    model = golden("llada").model
    with pytest.raises(DecodeError, match="eot_id"):
        decode(model, torch.ones(1, 4, dtype=torch.int64), Decode.llada(length=8, late_eos=True))


def test_text_without_a_tokenizer() -> None:
    model = golden("llada").model
    with pytest.raises(TokenizerError, match="without a tokenizer"):
        model.generate("hello")
    with pytest.raises(TokenizerError, match="without a tokenizer"):
        model.decode_text(torch.ones(3, dtype=torch.int64))


def test_words_are_fitted_to_each_other() -> None:
    model = golden("llada").model
    chosen = resolve_settings(model.defaults, model, 8, {"length": 24})
    assert (chosen.length, chosen.block, chosen.steps) == (24, 24, 24)
    assert resolve_settings(model.defaults, model, 250, {}).length == 6
    with pytest.raises(DecodeError, match="lenght"):
        resolve_settings(model.defaults, model, 8, {"lenght": 24})
    with pytest.raises(SinkscopeError, match="block"):
        resolve_settings(model.defaults, model, 8, {"length": 24, "block": 7})
    dream = golden("dream").model
    assert resolve_settings(dream.defaults, dream, 8, {"algorithm": "topk_margin", "length": 8}).confidence == "margin"


@pytest.mark.parametrize("length", [-1, 0, 8.5, float("nan"), "eight", True, [8]])
def test_a_length_that_is_none_is_told(length: object) -> None:
    model = golden("llada").model
    with pytest.raises(DecodeError, match="length"):
        resolve_settings(model.defaults, model, 8, {"length": length})


@pytest.mark.parametrize("settings", [3, None, "llada", {}])
def test_settings_of_another_kind(settings: Any) -> None:
    model = golden("llada").model
    with pytest.raises(DecodeError, match="settings as a Decode"):
        decode(model, torch.ones(1, 4, dtype=torch.int64), settings)
    with pytest.raises(DecodeError, match="a model as"):
        decode(settings, torch.ones(1, 4, dtype=torch.int64), Decode.llada(8))


@pytest.mark.parametrize("prompt", [None, 7, [7.5], [None], {"a": 1}, "half \udcff", ["of", "\ud800"], " "])
def test_prompts_of_another_kind(prompt: Any, tmp_path: Path) -> None:
    model = load(make_llada(save_tokenizer(tmp_path, mask_token="<m>")))
    with pytest.raises(PromptError, match="Expected a prompt") as caught:
        model.generate(prompt, length=4)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("settings", [Decode.parallel(8, threshold=0.9), Decode.parallel(8, block=4, factor=1.0)])
def test_a_model_that_keeps_choosing_its_mask_token_is_given_up(settings: Decode, tmp_path: Path) -> None:
    model = load(make_llada(tmp_path), mask_id=0)
    with torch.no_grad():
        model.module.get_output_embeddings().weight.zero_()  # type: ignore[operator]  # all alike: the first is taken
    with pytest.raises(DecodeError, match="keeps choosing its mask token"):
        decode(model, torch.ones(1, 4, dtype=torch.int64), settings)


@pytest.mark.parametrize("word", ["steps", "block"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "8", True, 10**400])
def test_values_are_checked_where_they_are_not_used(word: str, value: object) -> None:
    """Decoding from left to right has neither; one call may serve all families, and a senseless value serves none."""
    model = load("tiny-llama")
    for call in (model.generate, functools.partial(trace, model)):
        with pytest.raises(DecodeError, match=word) as caught:
            call("2 plus 3?", length=2, **{word: value})
        assert "\n" not in str(caught.value)


def test_generate_refuses_what_an_autoregressive_model_has_not() -> None:
    model = load("tiny-llama")
    with pytest.raises(DecodeError, match="steps and block"):
        model.generate("2 plus 3?", length=2, steps=2, block=2)
    assert trace(model, "2 plus 3?", length=2, steps=2, block=2).steps == 2
    assert resolve_settings(model.defaults, model, 4, {"length": 2, "steps": None, "block": 2}).block is None


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llada"])
@pytest.mark.parametrize("shape", [(1, 3), (1, 5), (2, 4), (4,), (1, 4, 1), (1, 4, 4)])
def test_a_mask_of_another_shape(name: str, shape: tuple[int, ...]) -> None:
    """A mask with one column more was taken, and cut."""
    model, ids = load(name), torch.ones(1, 4, dtype=torch.int64)
    mask = torch.ones(shape, dtype=torch.int64)
    settings = replace(model.defaults, length=8, **({} if model.causal else {"block": 8, "steps": 8}))
    for call in (
        functools.partial(trace, model, ids, settings), functools.partial(decode, model, ids, settings),
        functools.partial(model.logits, ids),
    ):  # fmt: skip
        with pytest.raises(PromptError, match=r"attention mask of shape \(1, 4\)") as caught:
            call(attention_mask=mask)
        assert "\n" not in str(caught.value)
    whole = torch.ones(1, 12, dtype=torch.int64)  # prompt and canvas, as some of the authors' decoders want it
    assert torch.equal(decode(model, ids, settings, attention_mask=whole).tokens, decode(model, ids, settings).tokens)
