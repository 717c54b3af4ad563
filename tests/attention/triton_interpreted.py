"""Run by test_triton.py in a process of its own, where Triton interprets kernels on the CPU, slowly: small shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attend_cases import calls, check_against_reference
from hypothesis import Phase, given, settings

from sinkscope.attention.attend import attend, check
from sinkscope.attention.triton import triton_attention
from sinkscope.errors import AttentionError

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")  # a row with no keys: not used


@settings(max_examples=20, phases=(Phase.generate,))  # no shrinking: a call takes a second
@given(words=calls(longest=20, dtypes=(torch.float32, torch.bfloat16, torch.float16), few=True))
def test_triton_is_the_reference(words: dict[str, Any]) -> None:
    check_against_reference(words, "triton")


@pytest.mark.parametrize("block", [1, 5, 24])
@pytest.mark.parametrize(("keys", "first"), [(40, None), (57, None), (57, 9), (30, None)])
def test_several_tiles_each_way(keys: int, first: int | None, block: int) -> None:
    q, k, v = torch.randn(1, 2, 40, 16), torch.randn(1, 1, keys, 16), torch.randn(1, 1, keys, 16)
    drop = torch.rand(1, 2, keys) < 0.2
    words: dict[str, Any] = {"keep_self": True, "block": block, "first": first}
    call = check(q, k, v, None, False, torch.arange(40) % 3, None, drop, clean=True, group_count=None, **words)
    expected = attend(q, k, v, groups=torch.arange(40) % 3, drop_keys=drop, clean=True, backend="reference", **words)
    for one, other in zip(expected, triton_attention(call, rows=16, keys=16), strict=True):
        torch.testing.assert_close(other, one, atol=5e-5, rtol=1e-5)


def test_more_groups_than_rows_and_rows_of_none() -> None:
    q, k, v = torch.randn(2, 2, 9, 16), torch.randn(2, 2, 30, 16), torch.randn(2, 2, 30, 16)
    groups = torch.tensor([[4, 4, -1, 0, 0, 2, 4, 0, -1], [-1] * 9])
    words: dict[str, Any] = {"groups": groups, "group_count": 6, "causal": True}
    for one, other in zip(*(attend(q, k, v, backend=name, **words) for name in ("reference", "triton")), strict=True):
        torch.testing.assert_close(other, one, atol=5e-5, rtol=1e-5)


def test_two_runs_give_the_same_bits() -> None:
    q, k, v = torch.randn(1, 2, 30, 16), torch.randn(1, 2, 30, 16), torch.randn(1, 2, 30, 16)
    one, other = (attend(q, k, v, backend="triton") for _ in range(2))
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def test_nan_is_not_hidden() -> None:
    q, k, v = torch.randn(1, 1, 6, 4), torch.randn(1, 1, 6, 4), torch.randn(1, 1, 6, 4)
    q[0, 0, 2, 1] = torch.nan
    assert attend(q, k, v, backend="triton")[0].isnan().any(-1).flatten().tolist() == [i == 2 for i in range(6)]
    received = attend(q, k, v, groups=torch.arange(6) % 2, backend="triton")[1]  # row 2 is of group 0
    assert received[0, 0].isnan().all(1).tolist() == [True, False]
    q, v[0, 0, 3] = torch.randn(1, 1, 6, 4), torch.nan
    assert attend(q, k, v, backend="triton")[0].isnan().all()


def test_float64_is_refused() -> None:
    q = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    with pytest.raises(AttentionError, match="float64"):
        attend(q, q, q, backend="triton")
