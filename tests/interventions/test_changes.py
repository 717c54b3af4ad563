"""What a Change can do beyond hiding keys: other keys, other values, keys that the text does not have."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import sinkscope as sk
from sinkscope.attention.call import Call, CallResult, Change, Tap, run_call
from sinkscope.errors import CaptureError
from sinkscope.interventions import Intervention
from sinkscope.interventions.memory import Memory


@dataclass
class Changing(Tap):
    wanted: list[Change]
    outcome: CallResult | None = None

    def change(self, call: Call) -> list[Change]:
        return self.wanted

    def take(self, call: Call, outcome: CallResult) -> None:
        self.outcome = outcome


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and column sums, written out; mask True = may attend."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1)
    return weights @ v, weights.sum(2)


@pytest.mark.parametrize("seen", ["all", "causal", "mask", "cached"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_softmax_off_by_one_and_other_extra_keys(seen: str, kv_heads: int) -> None:
    """A key of zeros scores 0, so that every row pays exp(0) = 1 to nobody: softmax off by one."""
    queries = 3 if seen == "cached" else 7
    q, k, v = torch.randn(2, 4, queries, 8), torch.randn(2, kv_heads, 7, 8), torch.randn(2, kv_heads, 7, 8)
    may = None
    if seen in ("causal", "cached"):
        may = torch.ones(queries, 7, dtype=torch.bool).tril(7 - queries)
    if seen == "mask":
        may = torch.rand(2, 1, 7, 7) < 0.7
    call = Call(
        0, q, k, v, may if seen == "mask" else None, may is not None and seen != "mask", None, None, lambda: q, False
    )
    zeros = torch.zeros(2, 4, 1, 8)
    drop = torch.zeros(2, 4, 7, dtype=torch.bool)
    drop[:, :, 2] = True
    tap = Changing([Change(extra=(zeros, zeros)), Change(drop=drop)])
    out = run_call(call, [tap])
    share = 4 // kv_heads
    keys, values = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = q @ keys.mT * 8**-0.5
    if may is not None:
        scores = scores.masked_fill(~may, -torch.inf)
    scores[..., 2] = -torch.inf
    weights = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    torch.testing.assert_close(out, weights @ values, atol=1e-5, rtol=1e-4)
    assert tap.outcome is not None and tap.outcome.received.shape == (2, 4, 1, 7)
    torch.testing.assert_close(tap.outcome.received[:, :, 0], weights.sum(2), atol=1e-5, rtol=1e-4)
    assert torch.equal(tap.outcome.drop, drop)


def test_other_keys_and_values_together() -> None:
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    call = Call(0, q, k, v, None, False, None, None, lambda: q, False)
    tap = Changing([Change(keys=lambda keys: keys.flip(-1)), Change(values=lambda values: values * 2)])
    out, received = plain(q, k.flip(-1).repeat_interleave(2, 1), 2 * v.repeat_interleave(2, 1), None)
    torch.testing.assert_close(run_call(call, [tap]), out, atol=1e-5, rtol=1e-4)
    assert tap.outcome is not None
    torch.testing.assert_close(tap.outcome.received[:, :, 0], received, atol=1e-5, rtol=1e-4)


@dataclass(frozen=True)
class OffByOne(Intervention):
    is_noop = False

    def change(self, call: Call, memory: Memory) -> Change | None:
        nothing = call.q.new_zeros(call.q.shape[0], call.q.shape[1], 1, call.q.shape[3])
        return Change(extra=(nothing, nothing))


def test_an_extra_key_in_a_model_takes_attention_from_the_text() -> None:
    model = sk.load("tiny-llama")
    with sk.intervene(model, OffByOne()), sk.observe(model) as seen:
        sk.decode(model, model.encode("Tom has 3."), sk.Decode.autoregressive(length=4))
    for received in seen.received:
        paid = received.sum((2, 3))
        assert bool((paid < received.shape[-1]).all()) and bool((paid > 0).all())
    module, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 3, 8)
    with pytest.raises(CaptureError, match="extra keys"), sk.intervene(module, OffByOne()):
        module(x, x, x)
