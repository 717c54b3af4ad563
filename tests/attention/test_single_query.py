"""Single queries in half precision on a CPU: the grouped product is SDPA, to rounding, and the same bits with and without a tap."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import sinkscope as sk
from sinkscope.attention import patch
from sinkscope.attention.tiled import single_query


@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 3),
    heads=st.sampled_from(((1, 1), (4, 4), (6, 2), (9, 3))),
    keys=st.integers(1, 60),
    dims=st.sampled_from(((8, 8), (16, 24), (64, 64))),
    dtype=st.sampled_from((torch.bfloat16, torch.float16)),
    masked=st.booleans(),
    scale=st.sampled_from((None, 0.3)),
)
def test_it_is_sdpa_to_rounding(
    seed: int, batch: int, heads: tuple[int, int], keys: int, dims: tuple[int, int], dtype: torch.dtype, masked: bool,
    scale: float | None,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    q = torch.randn(batch, heads[0], 1, dims[0]).to(dtype)
    k, v = (torch.randn(batch, heads[1], keys, dim).to(dtype) for dim in dims)
    mask = (torch.rand(batch, 1, 1, keys) < 0.7) | (torch.arange(keys) == 0) if masked else None
    wide = (part.double() for part in (q, k, v))
    exact = scaled_dot_product_attention(*wide, attn_mask=mask, scale=scale, enable_gqa=True)
    found = single_query(q, k, v, mask, scale)
    assert found.dtype == dtype
    # Half a step of the last place of the output, and float32 before it.
    step = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1.01 * step)


def test_a_padded_batch_is_decoded_through_it_with_the_same_bits_under_a_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*words: torch.Tensor) -> torch.Tensor:
        calls.append(words[0].shape)
        return single_query(*words)

    monkeypatch.setattr(patch, "single_query", counted)
    model = sk.load("tiny-llama", dtype="bfloat16")
    ids, mask, _ = model.batch(["Tom has 3 apples.", "Tom has 3 apples. Then Tom finds 4."], None)
    settings = sk.Decode.autoregressive(length=5, stop="never")
    plain = sk.decode(model, ids, settings, attention_mask=mask)
    assert len(calls) == 4 * model.config.num_hidden_layers  # all steps but the prefill
    with sk.intervene(model, sk.MaskSinks(k=0)):
        nothing = sk.decode(model, ids, settings, attention_mask=mask)
    assert torch.equal(plain.tokens, nothing.tokens)
    assert len(calls) == 8 * model.config.num_hidden_layers
    sk.decode(sk.load("tiny-llama"), ids, settings, attention_mask=mask)
    assert len(calls) == 8 * model.config.num_hidden_layers  # float32 goes its own way
