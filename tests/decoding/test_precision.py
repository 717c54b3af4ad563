"""Half precision with every family and every cache: two properties of a run always meet in one case at least."""

from __future__ import annotations

import pytest
import torch

import precision_cases
import sinkscope as sk


def test_the_cover_is_small_and_whole() -> None:
    chosen = precision_cases.pairwise()
    assert len(chosen) <= 80
    assert {(case.family, str(case.cache)) for case in chosen} == {
        (case.family, str(case.cache)) for case in precision_cases.every()
    }


@pytest.mark.parametrize("case", precision_cases.pairwise(), ids=str)
def test_half_precision(case: precision_cases.Case) -> None:
    precision_cases.run(case)


@pytest.mark.parametrize("kind", [None, "prefix", "dual"])
def test_keys_are_cached_in_the_dtype_of_the_model(kind: str | None) -> None:
    model = sk.load("tiny-llada", dtype="bfloat16")
    settings = sk.Decode.parallel(length=8, block=4, threshold=0.9, cache=kind)
    assert sk.decode(model, torch.tensor([[5, 6, 7]]), settings).tokens.shape == (1, 11)
