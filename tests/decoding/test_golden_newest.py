"""Every generation of the newest golden sets: canvases, tokens and counts of forwards are the authors'."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import sinkscope as sk
from golden_sets import HERE, NewestGolden, newest, newest_generations, newest_sets
from sinkscope.decoding import Step, decode
from sinkscope.interventions import Intervention

COUNTS = {"nemotron_labs_diffusion": 28, "illada": 12, "wedlm": 9, "rnd1": 14, "diffusion_gemma": 14}


def test_the_committed_set_is_whole() -> None:
    here = [found for _, found in newest_sets() if found.folder.parent == HERE / "newest"]
    assert {found.family: len(found.facts["generation"]) for found in here} == COUNTS


@pytest.mark.parametrize(("found", "case"), newest_generations("illada", "rnd1"))
def test_whole_canvas(found: NewestGolden, case: dict[str, Any]) -> None:
    ids, mask = found.prompt(case)
    settings, steps = found.settings(case), list[Step]()
    done = decode(found.model, ids, settings, attention_mask=mask, on_step=steps.append)
    assert torch.equal(done.history, found.tensor(case["canvas"]))
    assert torch.equal(done.tokens, found.tensor(case["output"]))
    assert done.forwards == len(steps) == case["forwards"] <= settings.most_steps


@pytest.mark.parametrize(("found", "case"), newest_generations("wedlm"))
def test_reordered(found: NewestGolden, case: dict[str, Any]) -> None:
    """The authors run the rows one after the other, over the text up to the end of the block at work."""
    ids, mask = found.prompt(case)
    settings, canvases = found.settings(case), found.tensor(case["canvas"])
    first = 0
    for row, forwards in enumerate(case["forwards_per_row"]):
        prompt = ids[row : row + 1] if mask is None else ids[row : row + 1, : int(mask[row].sum())]
        steps = list[Step]()
        done = decode(found.model, prompt, settings, on_step=steps.append)
        assert done.history is not None and done.forwards == forwards
        for step, length in enumerate(case["canvas_length"][first : first + forwards]):
            assert torch.equal(done.history[step, 0, :length], canvases[first + step, :length])
            assert steps[step].block[1] == length
        assert [int(step.committed.sum()) for step in steps] == case["tokens_per_step"][row]
        expected = found.tensor(case["sequences"])[row]
        assert torch.equal(done.tokens[0], expected[: done.tokens.shape[1]])
        first += forwards
    together = decode(found.model, ids, settings, attention_mask=mask)
    width = settings.length
    for row, returned in enumerate(together.returned):
        end = (ids.shape[1] if mask is None else int(mask[row].sum())) + width
        assert torch.equal(returned, found.tensor(case["sequences"])[row, end - width : end])


def _modes(*modes: str) -> list[Any]:
    return [case for case in newest_generations("nemotron_labs_diffusion") if case.values[1]["mode"] in modes]


@pytest.mark.parametrize(("found", "case"), _modes("diffusion"))
def test_nemotron_diffusion(found: NewestGolden, case: dict[str, Any]) -> None:
    settings, steps = found.settings(case), list[Step]()
    done = decode(found.model, found.tensor(case["prompt"]), settings, on_step=steps.append)
    assert torch.equal(done.history, found.tensor(case["canvas"]))
    assert done.forwards == case["nfe"] + 1  # the prompt's forward is not counted there
    assert len(steps) == case["denoising_forwards"] <= settings.most_steps
    assert torch.equal(_with_prompt(found, case, done.returned), found.tensor(case["returned"]))


@pytest.mark.parametrize(("found", "case"), _modes("diffusion")[:5])
def test_nemotron_without_a_cache_gives_the_same_canvases(found: NewestGolden, case: dict[str, Any]) -> None:
    settings = found.settings(case)
    if settings.causal_context:
        done = decode(found.model, found.tensor(case["prompt"]), replace(settings, cache=None))
        assert torch.equal(done.history, found.tensor(case["canvas"]))


@pytest.mark.parametrize(("found", "case"), _modes("ar"))
def test_nemotron_left_to_right(found: NewestGolden, case: dict[str, Any]) -> None:
    done = decode(found.model, found.tensor(case["prompt"]), found.settings(case))
    assert done.forwards == case["nfe"]
    assert torch.equal(_with_prompt(found, case, done.returned), found.tensor(case["returned"]))
    own = decode(found.model.in_mode("autoregressive"), found.tensor(case["prompt"]), found.settings(case))
    assert torch.equal(own.tokens, done.tokens)


@pytest.mark.parametrize(("found", "case"), _modes("linear_spec"))
def test_nemotron_self_speculation(found: NewestGolden, case: dict[str, Any]) -> None:
    """Every forward has the authors' block and cache, those that verify too."""
    seen = list[tuple[Tensor, int]]()

    def note(_: Any, args: Any, words: dict[str, Any]) -> None:
        seen.append((args[0][0].clone(), words["past_key_values"].get_seq_length()))

    settings, steps = found.settings(case), list[Step]()
    hook = found.model.module.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        done = decode(found.model, found.tensor(case["prompt"]), settings, on_step=steps.append)
    finally:
        hook.remove()
    assert torch.equal(torch.stack([ids for ids, _ in seen[1:]]), found.tensor(case["blocks"]))
    assert [length for _, length in seen[1:]] == case["cache_length"]
    assert len(steps) == case["kinds"].count("draft") <= settings.most_steps
    assert done.forwards == case["nfe"]
    assert torch.equal(_with_prompt(found, case, done.returned), found.tensor(case["returned"]))


@pytest.mark.parametrize(("found", "case"), newest_generations("diffusion_gemma"))
def test_diffusion_gemma(found: NewestGolden, case: dict[str, Any]) -> None:
    """Its own generate, under our attention too: watched, and with keys hidden from the decoder."""
    ids, mask = found.prompt(case)
    settings, steps = found.settings(case), list[Step]()
    with sk.intervene(found.model, *hidden(case.get("intervention"))), sk.observe(found.model):
        done = decode(found.model, ids, settings, attention_mask=mask, on_step=steps.append)
    assert torch.equal(done.tokens, found.tensor(case["sequences"]))
    assert done.history is not None and len(steps) == len(case["prefix_length"]) <= settings.most_steps
    for step, (start, canvas) in enumerate(zip(case["prefix_length"], found.tensor(case["canvas"]), strict=True)):
        assert torch.equal(done.history[step, :, start : start + canvas.shape[1]], canvas)
        assert steps[step].block == (start, start + canvas.shape[1])
    canvases = len(set(case["prefix_length"]))
    assert done.forwards == len(steps) + canvases  # the encoder reads prompt and canvases, all but the last


def hidden(facts: dict[str, Any] | None) -> list[Intervention]:
    if facts is None:
        return []
    if facts["kind"] == "hide_top1":
        return [sk.MaskSinks(k=1, rank="as_run")]
    return [HiddenAt((facts["position"],), at=tuple(facts["decoder_forwards"]))]


@dataclass(frozen=True)
class HiddenAt(sk.MaskPositions):
    """Positions hidden at some steps only."""

    at: tuple[int, ...] = ()

    def select(self, call: Any, memory: Any) -> Tensor | None:
        return super().select(call, memory) if call.forward.step in self.at else None


def test_diffusion_gemma_needs_its_mask_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention registered without a mask function of the same name gives other texts, and no error."""
    from transformers.masking_utils import AttentionMaskInterface

    found = newest("diffusion_gemma")
    case = next(case for case in found.facts["generation"] if case["name"] == "batch2_leftpad")
    ids, mask = found.prompt(case)
    put = AttentionMaskInterface.register
    try:
        monkeypatch.setattr(AttentionMaskInterface, "register", classmethod(lambda *_: None))
        AttentionMaskInterface._global_mapping.pop("sinkscope", None)
        with sk.observe(found.model):
            done = decode(found.model, ids, found.settings(case), attention_mask=mask)
    finally:
        monkeypatch.setattr(AttentionMaskInterface, "register", put)
    assert not torch.equal(done.tokens, found.tensor(case["sequences"]))
    with sk.observe(found.model):
        done = decode(found.model, ids, found.settings(case), attention_mask=mask)
    assert torch.equal(done.tokens, found.tensor(case["sequences"]))


def test_accepted_positions_are_the_samplers() -> None:
    """What a step accepts stands on the canvas of the next, and the rest is drawn anew."""
    found = newest("diffusion_gemma")
    case = next(case for case in found.facts["generation"] if case["name"] == "entropy_bound_1")
    seen = list[Tensor]()
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSampler as Sampler

    accept, steps = Sampler.accept_canvas, list[Step]()

    def noted(self: Any, *args: Any) -> Tensor:
        canvas: Tensor = accept(self, *args)
        seen.append(self.accepted_token_mask.clone())
        return canvas

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampler, "accept_canvas", noted)
        decode(found.model, found.tensor(case["prompt"]), found.settings(case), on_step=steps.append)
    last = {step.block: step.index for step in steps}
    for step, accepted in zip(steps, seen, strict=True):
        inside = step.committed[:, slice(*step.block)]
        assert bool(inside.all()) if last[step.block] == step.index else torch.equal(inside, accepted)


def _with_prompt(found: NewestGolden, case: dict[str, Any], answers: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([found.tensor(case["prompt"]), torch.stack(answers)], 1)
