"""Requests of lm-evaluation-harness: any text, any stop strings, any length; an answer per request, or one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from contract import answered, fuzz
from hypothesis import given
from hypothesis import strategies as st

from made_models import make_causal, make_llada, save_tokenizer
from sinkscope.errors import SinkscopeError
from sinkscope.models import load

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra: eval)")
from lm_eval.api.instance import Instance

from sinkscope.tasks.harness import HarnessLM

TEXT = st.one_of(st.sampled_from(["", " ", "Tom has two", "of and two"]), st.text(max_size=20))
ANY = st.one_of(
    TEXT, st.none(), st.integers(), st.floats(), st.booleans(), st.binary(max_size=3), st.lists(TEXT, max_size=2)
)
UNTIL = st.one_of(ANY, st.lists(ANY, max_size=3), st.tuples(TEXT, TEXT))


@pytest.fixture(scope="module", params=["llada", "causal"])
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HarnessLM:
    folder = tmp_path_factory.mktemp(request.param)
    save_tokenizer(folder, eos_token="</s>", **({"mask_token": "<m>"} if request.param == "llada" else {}))
    if request.param == "llada":
        make_llada(folder, vocabulary=19, mask_token_id=18, eos_token_id=17, pad_token_id=17)
    else:
        make_causal(folder, vocabulary=20)
    return HarnessLM(load(folder), settings={"length": 4}, samples=3, batch_size=4)


@fuzz
@given(
    text=ANY, until=UNTIL, longest=ANY, more=st.dictionaries(st.sampled_from(["do_sample", "temperature", "x"]), ANY)
)
def test_generation(lm: HarnessLM, text: Any, until: Any, longest: Any, more: dict[str, Any]) -> None:
    words = {"until": until, "max_gen_toks": longest, **more}
    asked = [Instance("generate_until", {}, (text, words), 0, ("t", 0, 1))]
    found = answered(lambda: lm.generate_until(asked, disable_tqdm=True))
    if not isinstance(found, SinkscopeError):
        (answer,) = found
        assert isinstance(answer, str)
        stops = [until] if isinstance(until, str) else until or []
        assert not any(stop and stop in answer for stop in stops)


@fuzz
@given(pairs=st.lists(st.tuples(ANY, ANY), min_size=1, max_size=3))
def test_likelihoods(lm: HarnessLM, pairs: list[tuple[Any, Any]]) -> None:
    asked = [Instance("loglikelihood", {}, pair, 0, ("t", 0, 1)) for pair in pairs]
    found = answered(lambda: lm.loglikelihood(asked, disable_tqdm=True))
    if not isinstance(found, SinkscopeError):
        assert len(found) == len(pairs) and all(value <= 0 for value, _ in found)


@fuzz
@given(text=ANY)
def test_rolling_likelihoods(lm: HarnessLM, text: Any) -> None:
    asked = [Instance("loglikelihood_rolling", {}, (text,), 0, ("t", 0, 1))]
    found = answered(lambda: lm.loglikelihood_rolling(asked, disable_tqdm=True))
    assert isinstance(found, SinkscopeError) or found[0] <= 0


@pytest.mark.parametrize("words", [{"until": 5}, {"until": ["\n", 3]}, {"max_gen_toks": "x"}, {"max_gen_toks": 0}])
def test_what_would_have_no_effect_is_refused(lm: HarnessLM, words: dict[str, Any]) -> None:
    asked = [Instance("generate_until", {}, ("Tom has", words), 0, ("t", 0, 1))]
    assert isinstance(answered(lambda: lm.generate_until(asked, disable_tqdm=True)), SinkscopeError)


def test_an_empty_context_starts_a_text_and_an_empty_answer_is_refused(lm: HarnessLM) -> None:
    (text,) = lm.generate_until([Instance("generate_until", {}, ("", {}), 0, ("t", 0, 1))], disable_tqdm=True)
    assert isinstance(text, str)
    for context, answer in (("", ""), ("Tom has", ""), ("", " ")):  # to these words a space is no token
        asked = [Instance("loglikelihood", {}, (context, answer), 0, ("t", 0, 1))]
        assert isinstance(answered(lambda asked=asked: lm.loglikelihood(asked, disable_tqdm=True)), SinkscopeError)
