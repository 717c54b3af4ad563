"""The lens that a trace keeps, against the lens computed from its canvases."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sinkscope as sk
from sinkscope.errors import BudgetError, TraceError
from sinkscope.tracing.recorder import Keep
from sinkscope.tracing.states import TOP

PROMPT = "Tom has 3 apples. Then Tom finds 2.\nHow many apples are left?"


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream", "tiny-mmada"])
def test_a_kept_lens_is_the_lens_of_the_canvases(name: str) -> None:
    model = sk.load(name)
    trace = sk.trace(model, PROMPT, keep=Keep(lens=True))
    assert trace.lens_tokens is not None and trace.lens_probability is not None
    assert trace.lens_tokens.shape == (trace.steps, trace.layers, TOP, trace.positions)
    shift = int(model.shift)  # a row speaks for the position after its own, and is kept there
    for step in (0, 7, trace.steps - 1):
        best = sk.lens(model, trace.canvas[step][None])[:, 0].softmax(-1).topk(TOP, dim=-1)  # [layer, position, top]
        rows = slice(0, trace.positions - shift)
        kept = trace.lens_probability[step, :, :, shift:].mT.float()
        torch.testing.assert_close(kept, best.values[:, rows], atol=1e-3, rtol=1e-3)
        sure = (best.values[:, rows, :-1] - best.values[:, rows, 1:] > 1e-4).all(-1)  # equal ones may change places
        assert torch.equal(trace.lens_tokens[step, :, 0, shift:][sure], best.indices[:, rows, 0][sure].int())
    if shift:
        assert not bool(trace.lens_probability[..., 0].any())


def test_rows_of_a_padded_batch_are_those_of_each_alone() -> None:
    model = sk.load("tiny-dream")
    prompts = [PROMPT, "There are 8 books."]
    together = sk.trace(model, prompts, keep=Keep(lens=True))
    for prompt, one in zip(prompts, together, strict=True):
        alone = sk.trace(model, prompt, keep=Keep(lens=True))
        assert one.lens_probability is not None and alone.lens_probability is not None
        torch.testing.assert_close(one.lens_probability.float(), alone.lens_probability.float(), atol=2e-3, rtol=2e-3)


def test_a_causal_step_speaks_for_the_token_that_it_writes() -> None:
    model = sk.load("tiny-llama")
    trace = sk.trace(model, PROMPT, keep=Keep(lens=True))
    assert trace.lens_tokens is not None and trace.lens_probability is not None
    for step in range(trace.steps):
        place = trace.prompt_length + step
        assert int(trace.lens_tokens[step, -1, 0, place]) == int(trace.canvas[-1, place])  # greedy
        assert not bool(trace.lens_probability[step, :, :, place + 1 :].any())


def test_it_changes_no_token_is_saved_and_is_cut_with_the_trace(tmp_path: Path) -> None:
    model = sk.load("tiny-llada")
    plain, kept = sk.trace(model, PROMPT), sk.trace(model, PROMPT, keep=Keep(lens=True))
    assert torch.equal(plain.canvas, kept.canvas) and plain.lens_tokens is None
    assert not any(part._forward_hooks for part in model.module.modules())
    again = sk.Trace.load(kept.save(tmp_path / "a.trace"))
    assert again.lens_tokens is not None and torch.equal(again.lens_tokens, kept.lens_tokens)
    part = again.select(steps=slice(2, 5), layers=[1, 3])
    assert part.lens_tokens is not None
    assert torch.equal(part.lens_tokens, again.lens_tokens[2:5, [1, 3]])
    assert set(again.lens_tokens.unique().tolist()) <= set(again.vocabulary)


def test_its_bytes_count_and_what_is_no_choice_is_refused() -> None:
    model = sk.load("tiny-llada")
    size = 24 * model.config.num_hidden_layers * (len(model.encode(PROMPT)[0]) + 24) * TOP * (4 + 2)
    with pytest.raises(BudgetError, match="budget"):
        sk.trace(model, PROMPT, keep=Keep(lens=True, budget=size))
    with pytest.raises(TraceError, match="lens"):
        Keep(lens="yes")  # type: ignore[arg-type]


def test_a_damaged_lens_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    trace = sk.trace(sk.load("tiny-llada"), PROMPT, keep=Keep(lens=True))
    with pytest.raises(TraceError, match="lens"):
        sk.Trace.load(replace(trace, lens_probability=None).save(tmp_path / "half.trace"))
    assert trace.lens_tokens is not None
    with pytest.raises(TraceError, match="vocabulary"):
        sk.Trace.load(replace(trace, lens_tokens=trace.lens_tokens + 10_000).save(tmp_path / "strange.trace"))


def test_the_command_keeps_it(tmp_path: Path) -> None:
    from sinkscope.cli.app import run

    out = tmp_path / "run.trace"
    assert run(["trace", "tiny-llada", PROMPT, "--lens", "-o", str(out)]) == 0
    assert sk.Trace.load(out).lens_tokens is not None
