"""Every generation of the newer golden sets, canvas for canvas; and what each new decoder promises beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from golden_sets import HERE, NewerGolden, newer, newer_generations, newer_sets
from sinkscope.decoding import Decode, Step, decode
from sinkscope.models import Model, pad


@pytest.mark.parametrize(("found", "case"), newer_generations())
def test_generation(found: NewerGolden, case: dict[str, Any]) -> None:
    ids, mask = found.prompt(case)
    steps: list[Step] = []
    done = decode(found.model, ids, found.settings(case), attention_mask=mask, on_step=steps.append)
    canvas = found.tensor(case["canvas"])
    assert torch.equal(done.history, canvas)
    assert torch.equal(done.tokens, canvas[-1])
    assert done.forwards == case["forwards"]
    assert len(steps) == len(canvas) - 1 <= found.settings(case).most_steps
    if "returned" in case:
        assert torch.equal(done.returned[0], found.tensor(case["returned"]).flatten())
    if "edits" in case:
        assert sum(int(step.edited.sum()) for step in steps if step.edited is not None) == case["edits"]
    assert [step.committed.sum(1).tolist() for step in steps] == _commits(case, canvas, found.model.mask_id)


def _commits(case: dict[str, Any], canvas: Tensor, mask_id: int | None) -> list[list[int]]:
    """Masks that became tokens, counted from the canvases (SDAR's own count has what it overwrites too)."""
    before, after = canvas[:-1] == mask_id, canvas[1:] != mask_id
    counted: list[list[int]] = (before & after).sum(-1).tolist()
    if not case.get("overwritten_known_tokens"):
        assert counted == case["committed_per_step"]
    return counted


def test_the_committed_set_is_whole() -> None:
    here = [found for _, found in newer_sets() if found.folder.parent == HERE / "newer"]
    assert {found.family: len(found.facts["generation"]) for found in here} == {"llada2": 18, "sdar": 15, "a2d": 28}


@pytest.mark.parametrize(
    ("found", "case"), [case for case in newer_generations() if case.values[0].family in ("llada2", "sdar")]
)
def test_an_exact_cache_changes_no_token(found: NewerGolden, case: dict[str, Any]) -> None:
    settings = found.settings(case)
    other = replace(settings, cache=None if settings.cache else "exact")
    assert torch.equal(decode(found.model, found.tensor(case["prompt"]), other).history, found.tensor(case["canvas"]))


@pytest.mark.parametrize("name", ["static_overwrites_known_tokens", "static_b4_s4", "sequential_b8_s4"])
def test_sdar_keeps_known_tokens_unless_the_reference_is_asked_for(name: str) -> None:
    found = newer("sdar")
    case = next(case for case in found.facts["generation"] if case["name"] == name)
    prompt = found.tensor(case["prompt"])
    steps: list[Step] = []
    done = decode(found.model, prompt, replace(found.settings(case), overwrite="never"), on_step=steps.append)
    assert torch.equal(done.tokens[:, : prompt.shape[1]], prompt)
    assert all(step.edited is None for step in steps)
    for before, after in zip(done.history, done.history[1:], strict=False):
        known = before != found.model.mask_id
        assert torch.equal(before[known], after[known])
    assert not (done.tokens == found.model.mask_id).any()


def test_an_edit_is_told_as_an_edit() -> None:
    found = newer("llada2")
    case = next(case for case in found.facts["generation"] if case["name"] == "v21_speed_mode_b8")
    steps: list[Step] = []
    done = decode(found.model, found.tensor(case["prompt"]), found.settings(case), on_step=steps.append)
    assert done.history is not None
    for step, before, after in zip(steps, done.history, done.history[1:], strict=False):
        assert step.edited is not None
        assert torch.equal(step.edited, (before != found.model.mask_id) & (before != after))
        assert not (step.edited & step.committed).any()
    assert case["edits"] > 0


LENGTHS = (5, 9, 3, 8)
SETTINGS = {
    "llada2": [
        Decode.llada2(length=12, block=4, steps=4, threshold=0.6, eos_id=0),
        Decode.llada2(length=12, block=8, steps=3, threshold=0.9, eos_id=0, cache="exact"),
        Decode.llada2(length=12, block=4, temperature=0.8, threshold=0.5, eos_id=0, noise="per_row", seed=3),
        Decode.llada21(length=8, block=4, threshold=0.6, editing_threshold=0.7, max_post_steps=1),
    ],
    "sdar": [
        Decode.sdar(length=12, block=4, steps=2, rule="static", temperature=0.0),
        Decode.sdar(length=10, block=4, steps=4, noise="per_row", seed=5),
        Decode.sdar(length=10, block=4, steps=3, rule="sequential", noise="per_row", cache=None),
    ],
    "a2d": [
        Decode.mdlm(length=12, block=5, steps=7),
        Decode.mdlm(length=12, block=4, steps=6, guidance=1.0),
        Decode.mdlm(length=12, block=4, steps=6, temperature=0.7, stochastic=True, noise="per_row"),
        Decode.bd3lm(length=12, block=4, steps=7, eos_id=0, pad_id=1),
        Decode.bd3lm(length=11, block=4, steps=6, temperature=0.7, eos_id=0, pad_id=1, noise="per_row"),
        Decode.bd3lm(length=8, block=4, steps=8, guidance=0.5, eos_id=0, pad_id=1, cache=None, shift=True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("family", "chosen"), [(family, chosen) for family, several in SETTINGS.items() for chosen in several]
)
def test_rows_equal_alone(family: str, chosen: Decode, side: str) -> None:
    model = newer(family).model
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(4, 60, (1, length), generator=generator) for length in LENGTHS]
    ids, mask = pad(prompts, model) if side == "left" else _right_padded(prompts, model)
    together = decode(model, ids, chosen, attention_mask=mask)
    for row, prompt in enumerate(prompts):
        alone = decode(model, prompt, chosen).returned[0]
        assert together.returned[row].tolist() == alone.tolist(), f"row {row}"


def _right_padded(prompts: list[Tensor], model: Model) -> tuple[Tensor, Tensor]:
    widest = max(prompt.shape[1] for prompt in prompts)
    ids = torch.full((len(prompts), widest), 1)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, : prompt.shape[1]], mask[row, : prompt.shape[1]] = prompt[0], 1
    return ids, mask
