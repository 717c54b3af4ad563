"""What a trace keeps of received attention decides every rule as the sums themselves do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sinkscope as sk
from sinkscope.sinks.rules import Rule
from sinkscope.tracing.recorder import dtype_of

RULES: list[Rule] = [
    sk.Threshold(3.0, unit="sum"), sk.Threshold(3.0, unit="percent"), sk.Threshold(0.05, unit="mean"),
    sk.Threshold(3.0, unit="uniform"), sk.ZScore(3.0), sk.HeadShare(0.1), sk.HeadShare(0.3),
]  # fmt: skip
MAPS, QUERIES, KEYS = 10_000, 32, 48


def random_sums(dtype: torch.dtype) -> torch.Tensor:
    """Column sums of 10,000 random maps, many of them with a key near a rule's limit, [step, 1, head, key]."""
    drawn = torch.Generator().manual_seed(7)
    scores = torch.randn(MAPS, QUERIES, KEYS, generator=drawn) + 3 * torch.randn(MAPS, 1, KEYS, generator=drawn)
    return scores.to(dtype).softmax(-1).sum(1)[None, None]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_kept_sums_decide_as_the_sums_themselves(rule: Rule) -> None:
    sums, queries = random_sums(torch.float32), torch.tensor([QUERIES])
    kept = sums.to(dtype_of("received", sk.Keep())).float()
    assert torch.equal(kept, sums)
    expected = rule.marks(random_sums(torch.float64).float(), queries)
    assert torch.equal(rule.marks(kept, queries), expected) and bool(expected.any())


def test_sixteen_bits_would_flip_some() -> None:
    sums, queries = random_sums(torch.float32), torch.tensor([QUERIES])
    assert any(not torch.equal(rule.marks(sums.half().float(), queries), rule.marks(sums, queries)) for rule in RULES)


def test_a_file_gives_back_the_bits_and_has_the_size_that_is_said(tmp_path: Path) -> None:
    model, settings = sk.load("tiny-llada"), sk.Decode.llada(length=64, block=64, steps=16)
    with sk.observe(model) as seen:
        model.generate("Tom has 3 apples.", settings)
    trace = sk.trace(model, "Tom has 3 apples.", settings)
    file = trace.save(tmp_path / "one.trace")
    loaded = sk.Trace.load(file)
    assert loaded.received is not None
    observed = torch.stack([one[0] for one in seen.received]).unflatten(0, (trace.steps, trace.layers))
    assert torch.equal(loaded.received, observed)
    numbers = trace.steps * trace.layers * trace.heads_count * 3 * trace.positions
    assert 4 * numbers < file.stat().st_size < 4 * numbers * 1.1


def test_an_epsilon_is_of_the_default_rule() -> None:
    trace = sk.trace(sk.load("tiny-llada"), "Tom has 3 apples.", length=16, steps=4)
    assert trace.sinks(epsilon=3).equals(trace.sinks()) and trace.sinks(epsilon=1).height > trace.sinks().height
