"""Every generation of the golden sets, token for token and canvas for canvas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from golden_sets import HERE, LOGITS, Golden, generations, golden_sets, parallel_cases
from sinkscope.decoding import Decode, decode


@pytest.mark.parametrize(("found", "case"), generations())
def test_generation(found: Golden, case: dict[str, Any]) -> None:
    done = decode(
        found.model,
        found.tensor(case["prompt"]),
        found.settings(case),
        attention_mask=found.optional(case["attention_mask"]),
    )
    assert done.forwards == case["forwards"]
    assert done.history is not None
    assert torch.equal(done.history, found.tensor(case["canvas"]))
    assert torch.equal(done.tokens, found.tensor(case["output"]))


OFF = [case for case in generations() if case.values[1].get("canvas_off")]


@pytest.mark.parametrize(("found", "case"), OFF)
def test_dream_without_its_hidden_top_k(found: Golden, case: dict[str, Any]) -> None:
    settings = replace(found.settings(case), top_p=None, top_k=None)
    done = decode(found.model, found.tensor(case["prompt"]), settings)
    assert torch.equal(done.history, found.tensor(case["canvas_off"]))


def test_dream_arguments_left_out_are_the_authors_defaults() -> None:
    for _, found in golden_sets():
        for case in found.facts["generation"]:
            if case["name"] == "trap_all_defaults":
                settings = Decode.dream(
                    length=case["passed"]["max_new_tokens"], steps=case["passed"]["steps"], seed=case["seed"]
                )
                assert settings == found.settings(case)


def settings_of(case: dict[str, Any]) -> Decode:
    used = case["settings"]
    quota = used["threshold"] is None and used["factor"] is None  # only then does the authors' code look at the steps
    return Decode.parallel(
        length=used["gen_length"], block=used["block_length"], steps=used["steps"] if quota else None,
        threshold=used["threshold"], factor=used["factor"], cache=case["cache"],
    )  # fmt: skip


@pytest.mark.parametrize(("found", "case"), parallel_cases())
def test_parallel_generation(found: Golden, case: dict[str, Any]) -> None:
    hidden: list[Tensor] = []
    base = found.model.module.base_model
    handle = base.register_forward_hook(lambda module, inputs, output: hidden.append(output.last_hidden_state))
    try:
        done = decode(found.model, found.tensor(case["prompt"]), settings_of(case))
    finally:
        handle.remove()
    assert len(hidden) == done.forwards <= case["nfe"]
    assert torch.equal(done.history, found.tensor(case["canvas"]))
    assert torch.equal(done.tokens, found.tensor(case["output"]))
    if (cached := case.get("first_cached_forward")) is not None:
        with torch.inference_mode():
            logits = found.model.module.get_output_embeddings()(hidden[cached["index"]])
        torch.testing.assert_close(logits, found.tensor(cached["logits"]), atol=LOGITS, rtol=0)


def test_the_committed_set_is_whole() -> None:
    """A set that lost its cases would pass every test above."""
    here = [found for _, found in golden_sets() if found.folder.parent == HERE]
    assert {found.family: len(found.facts["generation"]) for found in here} == {"llada": 24, "dream": 29, "mmada": 11}
    assert sum(len(found.facts.get("fast_dllm", {}).get("cases", [])) for found in here) == 17
