"""Adapters whose direction of attention is not their family's own: trained, loaded and decoded with one and the same mask."""

from pathlib import Path

import pytest
import torch
from test_adapt import SMALL

import sinkscope as sk
from lab.adaptation import adaptation_from_dict
from lab.directions import causal_visible, make_known, prefix_visible
from lab.errors import TrainingError
from lab.train import train

CAUSAL = {**SMALL, "sees": "causal"}
PREFIX = {key: value for key, value in SMALL.items() if key != "mask_token"} | {
    "name": "small-prefix", "family": "llama", "sees": "prefix", "objective": {"prompt": 0}, "decode": {"length": 6},
}  # fmt: skip
PROMPT = "Tom has 12 apples."


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    make_known()
    folder = tmp_path_factory.mktemp("directions")
    return {
        str(recipe["sees"]): train(adaptation_from_dict(recipe), folder / str(recipe["sees"]), quiet=True)
        for recipe in (CAUSAL, PREFIX)
    }


def eager(model: sk.Model, ids: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Logits by transformers' own softmax of whole maps, with an added mask."""
    model.module.set_attn_implementation("eager")
    bias = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        found: torch.Tensor = model.module(ids, attention_mask=bias, use_cache=False).logits
    return found


def test_masks_are_what_they_say() -> None:
    assert causal_visible(3)[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert prefix_visible(torch.tensor([2]), 3)[0, 0].int().tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]


def test_a_causal_denoiser_is_loaded_as_it_was_trained(adapters: dict[str, Path]) -> None:
    model = sk.load(adapters["causal"])
    ids = model.encode(PROMPT)
    changed = ids.clone()
    changed[0, -1] = model.require_mask()
    before = model.logits(ids)
    assert torch.equal(before[:, :-1], model.logits(changed)[:, :-1])  # nothing looks ahead
    plain = eager(sk.load(adapters["causal"]), ids, causal_visible(ids.shape[1]))
    torch.testing.assert_close(before, plain, atol=2e-4, rtol=2e-4)
    assert isinstance(model.generate(PROMPT), str)


def test_a_prefix_model_reads_its_prompt_in_both_directions_and_its_answer_causally(adapters: dict[str, Path]) -> None:
    model = sk.load(adapters["prefix"])
    prompt = model.encode(PROMPT)
    answer = torch.tensor([[7, 8, 9]])
    ids = torch.cat([prompt, answer], 1)
    visible = prefix_visible(torch.tensor([prompt.shape[1]]), ids.shape[1])
    before = model.logits(ids)
    torch.testing.assert_close(before, eager(sk.load(adapters["prefix"]), ids, visible), atol=2e-4, rtol=2e-4)
    changed = ids.clone()
    changed[0, 1] = 11
    assert not torch.equal(before[:, 0], model.logits(changed)[:, 0])  # row 0 sees what is behind it


def test_ids_without_a_whole_header_are_read_causally(adapters: dict[str, Path]) -> None:
    model = sk.load(adapters["prefix"])
    prompt = model.encode(PROMPT)
    broken = prompt.clone()
    broken[0, -1] = prompt[0, 0]  # what begins a header ends it too
    for ids in (broken, prompt[:, -2:], prompt[:, :1]):
        assert torch.equal(model.family.visible(model, ids, None), causal_visible(ids.shape[1]))
    assert not torch.equal(model.family.visible(model, prompt, None), causal_visible(prompt.shape[1]))


@pytest.mark.parametrize("recompute", [False, True])
def test_a_prefix_model_writes_what_its_logits_say(adapters: dict[str, Path], recompute: bool) -> None:
    model = sk.load(adapters["prefix"])
    prompts, mask = sk.models.pad([model.encode(text) for text in (PROMPT, PROMPT + " He eats 3.")], model)
    done = sk.decode(model, prompts, sk.Decode.autoregressive(length=6, recompute=recompute), attention_mask=mask)
    for row, real in zip(done.tokens, mask, strict=True):
        start = int((real == 0).sum())
        for column in range(prompts.shape[1], prompts.shape[1] + 3):
            seen = row[None, start:column]
            if row[column] == model.fill_id:
                break
            assert int(model.logits(seen)[0, -1].argmax()) == int(row[column])


def test_a_direction_of_the_other_family_is_refused() -> None:
    with pytest.raises(TrainingError, match="causal is for a dream adapter"):
        adaptation_from_dict({**PREFIX, "sees": "causal"})
    with pytest.raises(TrainingError, match=r"objective\.prompt 0"):
        adaptation_from_dict({**PREFIX, "objective": {"prompt": 0.1}})
