"""Attention calls of many shapes, made up by hypothesis, and how near a backend must come to the reference."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from sinkscope.attention.attend import attend

# Largest difference from the reference: (output, column sums). Sums stay in fp32 for every dtype of q.
TOLERANCE = {
    torch.float64: (1e-10, 1e-10),
    torch.float32: (2e-5, 5e-5),
    torch.float16: (2e-2, 5e-5),
    torch.bfloat16: (6e-2, 5e-5),
}
NUMBERS = (-1e4, -torch.inf, torch.finfo(torch.float32).min)  # three ways to write "not this one"; the first means less


def some(shape: tuple[int, ...], share: float, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator) < share


@st.composite
def calls(draw: st.DrawFn, longest: int, dtypes: tuple[torch.dtype, ...], few: bool = False) -> dict[str, Any]:
    """Arguments of one call of attend."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    most = 2 if few else 3
    batch, kv_heads = draw(st.integers(1, most)), draw(st.integers(1, most))
    share = draw(st.sampled_from((1, 2) if few else (1, 1, 2, 4)))
    heads, queries = kv_heads * share, draw(st.integers(1, longest))
    # As many keys as queries, a cache before them, or anything: fewer keys leave the first causal rows with nothing.
    keys = draw(st.one_of(st.just(queries), st.integers(queries, longest), st.integers(1, longest)))
    dim, value_dim = draw(st.sampled_from((4, 16, 24))), draw(st.sampled_from((4, 16, 20)))
    dtype = draw(st.sampled_from(dtypes))

    def made(heads: int, length: int, dim: int, size: float) -> Tensor:
        if draw(st.booleans()):  # the layout that models use: [batch, position, head, dim] seen from the side
            return (torch.randn(batch, length, heads, dim, generator=generator) * size).to(dtype).transpose(1, 2)
        return (torch.randn(batch, heads, length, dim, generator=generator) * size).to(dtype)

    words: dict[str, Any] = {
        "q": made(heads, queries, dim, draw(st.sampled_from((1.0, 6.0)))),
        "k": made(kv_heads, keys, dim, 1.0),
        "v": made(kv_heads, keys, value_dim, 1.0),
        "scale": draw(st.sampled_from((None, 0.3))),
        "keep_self": draw(st.booleans()),
        "group_count": draw(st.sampled_from((None, 5))),
    }
    order = draw(st.sampled_from(("none", "causal", "block", "block")))
    if order == "causal":
        words["causal"] = True
    elif order == "block":
        words["block"] = draw(st.one_of(st.integers(1, 9), st.integers(1, longest + 5)))
    if draw(
        st.booleans()
    ):  # a window in the middle, with keys after it, or even one that begins before or after the keys
        words["first"] = draw(st.integers(-3, keys + 2))
    kind = draw(st.sampled_from(("none", "bool", "additive", "padding")))
    if kind != "none":
        rows = 1 if kind == "padding" else draw(st.sampled_from((1, queries)))
        shape = (draw(st.sampled_from((1, batch))), draw(st.sampled_from((1, heads))), rows, keys)
        mask = some(shape, draw(st.sampled_from((0.0, 0.3, 0.9))), generator)
        if kind == "padding" and draw(st.booleans()):
            mask = mask.expand(-1, -1, queries, -1)
            mask = mask.contiguous() if draw(st.booleans()) else mask
        if kind == "additive":
            mask = torch.randn(shape, generator=generator).masked_fill(~mask, draw(st.sampled_from(NUMBERS)))
        words["mask"] = mask
    if draw(st.booleans()):
        shape = (draw(st.sampled_from((1, batch))), draw(st.sampled_from((1, heads))), keys)
        words["drop_keys"] = some(shape, draw(st.sampled_from((0.0, 0.4, 1.0))), generator)
    labels = draw(st.sampled_from(("none", "shared", "each")))
    if labels != "none":
        shape = (queries,) if labels == "shared" else (batch, queries)
        words["groups"] = torch.randint(-1, 4, shape, generator=generator)
    return words


def check_against_reference(words: dict[str, Any], backend: str) -> None:
    """One call by a backend and by the reference: same shapes, same dtypes, same numbers, nothing undefined."""
    out_tolerance, sum_tolerance = TOLERANCE[words["q"].dtype]
    expected = attend(**words, clean=True, backend="reference")
    found = attend(**words, clean=True, backend=backend)
    for name, one, other in zip(("out", "received", "clean"), expected, found, strict=True):
        assert one.shape == other.shape, name
        assert one.dtype == other.dtype, name
        tolerance = out_tolerance if name == "out" else sum_tolerance
        torch.testing.assert_close(other, one, atol=tolerance, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    out, received = attend(**words, backend=backend)  # without the clean sums the code takes shorter ways
    torch.testing.assert_close(out, found[0], atol=out_tolerance, rtol=1e-5)
    torch.testing.assert_close(received, found[1], atol=sum_tolerance, rtol=1e-5)
