"""Half precision with every family and every cache: two properties of a run always meet in one case at least."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import precision_cases
import sinkscope as sk
from sinkscope.models.family import FAMILIES


def test_the_cover_is_small_and_whole() -> None:
    chosen = precision_cases.pairwise()
    assert len(chosen) <= 80
    assert {(case.family, str(case.cache)) for case in chosen} == {
        (case.family, str(case.cache)) for case in precision_cases.every()
    }


@pytest.mark.parametrize("case", precision_cases.pairwise(), ids=str)
def test_half_precision(case: precision_cases.Case) -> None:
    precision_cases.run(case)


@pytest.mark.parametrize("family", precision_cases.CACHES)
def test_the_others_are_refused(family: str) -> None:
    model = precision_cases.loaded(family, "bfloat16")
    for kind in (one for one in precision_cases.EVERY if one not in precision_cases.CACHES[family]):
        with pytest.raises(sk.SinkscopeError):
            sk.decode(model, torch.tensor([[20, 21, 22]]), precision_cases.settings_of(model, kind))


def test_every_family_is_there() -> None:
    found = {precision_cases.loaded(name, "bfloat16").family.name for name in precision_cases.CACHES}
    small = {"mdlm", "bd3lm", "gidd", "gidd_v2", "sedd"}  # published in float32, and compared in it
    assert found == set(FAMILIES) - small


@pytest.mark.parametrize("kind", ["prefix", "dual"])
def test_a_mask_token_in_the_prompt_is_refused_with_a_cache(kind: Any) -> None:
    model = sk.load("tiny-llada")
    ids = torch.tensor([[20, model.require_mask(), 21, 22]])
    with pytest.raises(sk.SinkscopeError, match="prompt holds the mask token"):
        sk.decode(model, ids, sk.Decode.parallel(length=8, block=4, threshold=0.9, cache=kind))
    done = sk.decode(model, ids[:, 1:], sk.Decode.parallel(length=8, block=4, cache=kind), torch.tensor([[0, 1, 1]]))
    assert done.tokens.shape == (1, 11)


@pytest.mark.parametrize("kind", [None, "prefix", "dual"])
def test_keys_are_cached_in_the_dtype_of_the_model(kind: str | None) -> None:
    model = sk.load("tiny-llada", dtype="bfloat16")
    settings = sk.Decode.parallel(length=8, block=4, threshold=0.9, cache=kind)
    assert sk.decode(model, torch.tensor([[5, 6, 7]]), settings).tokens.shape == (1, 11)
