"""Logits and received attention of the newest families equal what the authors' own code computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import sinkscope as sk
from golden_sets import NewestGolden, newest, newest_by_family

LOGITS, SUMS = 1e-4, 5e-5
FLOAT32 = sk.Keep(dtype=torch.float32)


def close(mine: Tensor, theirs: Tensor, atol: float = LOGITS) -> None:
    torch.testing.assert_close(mine, theirs, atol=atol, rtol=0)


def watched(model: sk.Model, *args: Any) -> tuple[Tensor, Tensor]:
    """Logits, and what each key received [batch, layer, head, key]."""
    with sk.observe(model) as seen:
        logits = model.logits(*args)
    return logits, torch.stack(seen.received, 1)[:, :, :, 0]


@pytest.mark.parametrize("found", newest_by_family("illada", "rnd1"))
def test_both_ways(found: NewestGolden) -> None:
    facts, sums = found.facts["forward"], found.facts.get("received_attention", {})
    logits, received = watched(found.model, found.tensor(facts["unpadded"]["input_ids"]))
    close(logits, found.tensor(facts["unpadded"]["logits"]))
    if "unpadded" in sums:
        close(received[0], found.tensor(sums["unpadded"]), SUMS)
    if "left_padded" in facts:
        names = facts["left_padded"]
        mask = found.tensor(names["attention_mask"])
        close(found.model.logits(found.tensor(names["input_ids"]), mask), found.tensor(names["logits"]))


@pytest.mark.parametrize("found", newest_by_family("illada"))
def test_padded_sums_are_of_real_rows(found: NewestGolden) -> None:
    names = found.facts["forward"]["left_padded"]
    _, received = watched(found.model, found.tensor(names["input_ids"]), found.tensor(names["attention_mask"]))
    close(received, found.tensor(found.facts["received_attention"]["left_padded"]["tensor"]), SUMS)


@pytest.mark.parametrize("found", newest_by_family("wedlm"))
def test_known_tokens_first(found: NewestGolden) -> None:
    """In the text's order, with the visibility that the authors' order of reading gives."""
    facts = found.facts["forward"]
    with torch.inference_mode():
        plain = found.model.module(found.tensor(facts["causal"]["input_ids"]), is_causal=True).logits
    close(plain, found.tensor(facts["causal"]["logits"]))
    names = facts["reordered"]
    order = found.tensor(names["position_ids"]).argsort(-1)
    ids = found.tensor(names["input_ids"]).gather(1, order)
    close(found.model.logits(ids), found.tensor(names["logits_in_text_order"]))
    visible = found.model.family.visible(found.model, ids, None)
    assert visible is not None and torch.equal(
        visible[:, 0].long(), found.tensor(names["visible_in_text_order"]).long()
    )


@pytest.mark.parametrize("found", newest_by_family("nemotron_labs_diffusion"))
def test_nemotron_in_both_modes(found: NewestGolden) -> None:
    facts, sums = found.facts["forward"], found.facts["received_attention"]
    for name, mode in (("bidirectional", "diffusion"), ("causal", "autoregressive")):
        logits, received = watched(found.model.in_mode(mode), found.tensor(facts[name]["input_ids"]))
        close(logits, found.tensor(facts[name]["logits"]))
        close(received[0], found.tensor(sums[name]), SUMS)


@pytest.mark.parametrize("found", newest_by_family("nemotron_labs_diffusion"))
def test_nemotron_block_over_a_causal_text(found: NewestGolden) -> None:
    from sinkscope.decoding.forwards import TextForwards

    facts = found.facts["forward"]["block"]
    ids, context = found.tensor(facts["input_ids"]), facts["context"]
    head = found.model.module.get_output_embeddings()  # type: ignore[operator]
    with torch.inference_mode(), sk.observe(found.model) as seen:
        forwards = TextForwards(found.model, ids.shape[1] - context, causal_context=True)
        close(head(forwards(ids, None, (0, context), keep=True)), found.tensor(facts["context_logits"]))
        close(head(forwards(ids, None, (context, ids.shape[1]), keep=False)), found.tensor(facts["logits"]))
    layers = int(found.model.config.num_hidden_layers)
    received = torch.stack(seen.received[layers:])[:, 0, :, 0]
    close(received, found.tensor(found.facts["received_attention"]["block"]), SUMS)


@pytest.mark.parametrize("found", newest_by_family("nemotron_labs_diffusion"))
def test_nemotron_with_a_rope_factor_below_one(found: NewestGolden, tmp_path: Path) -> None:
    facts = found.facts["forward"]["rope_factor_0.25"]
    config = json.loads((found.folder / "config.json").read_text())
    for name, value in facts["config_changes"].items():
        inner, _, field = name.rpartition(".")
        (config[inner] if inner else config)[field] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(found.folder / "model.safetensors", tmp_path)
    close(sk.load(tmp_path).logits(found.tensor(facts["input_ids"])), found.tensor(facts["logits"]))


@pytest.mark.parametrize("found", newest_by_family("nemotron_labs_diffusion", "illada", "diffusion_gemma"))
def test_received_at_every_step(found: NewestGolden) -> None:
    facts = found.facts["received_attention"]["per_step"]
    case = next(case for case in found.facts["generation"] if case["name"] == facts["case"])
    trace = sk.trace(found.model, found.tensor(case["prompt"]), found.settings(case), keep=FLOAT32)
    assert isinstance(trace, sk.Trace)
    close(trace.scores(), found.tensor(facts["tensor"]), SUMS)
    if found.family != "diffusion_gemma":
        assert torch.equal(trace.canvas, found.tensor(case["canvas"])[:, 0])
    else:
        assert torch.equal(trace.canvas[-1], found.tensor(case["sequences"])[0])


@pytest.mark.parametrize("found", newest_by_family("diffusion_gemma"))
def test_logits_of_the_first_forwards(found: NewestGolden) -> None:
    case = next(case for case in found.facts["generation"] if "first_logits" in case)
    seen, recipe = list[Tensor](), found.model.family
    head: Any = found.model.module.get_output_embeddings()  # type: ignore[operator]
    hook = head.register_forward_hook(lambda _, args, out: seen.append(out))
    try:
        sk.decode(found.model, found.tensor(case["prompt"]), found.settings(case))
    finally:
        hook.remove()
    for name, logits in zip(("first_logits", "second_logits"), seen, strict=False):
        close(recipe.cap(found.model.module, logits), found.tensor(case[name]))


@pytest.mark.parametrize("found", newest_by_family())
def test_facts_come_from_the_checkpoint(found: NewestGolden) -> None:
    special, model = found.facts["special_ids"], found.model
    assert (model.mask_id, model.family.name, model.tokenizer) == (special.get("mask"), found.family, None)
    assert model.eos_id == special.get("eos", special.get("eos_in_config"))
    assert (model.shift, model.causal) == (found.family == "rnd1", False)
    kinds = {"nemotron_labs_diffusion": "nemotron", "illada": "llada"}
    assert model.defaults.sampler == kinds.get(found.family, found.family)


def test_one_checkpoint_two_modes() -> None:
    found = newest("nemotron_labs_diffusion")
    ids = found.tensor(found.facts["forward"]["causal"]["input_ids"])
    causal = sk.load(found.folder, mode="autoregressive")
    assert causal.causal and causal.shift and causal.defaults.left_to_right
    assert torch.equal(causal.logits(ids), found.model.in_mode("autoregressive").logits(ids))
    assert causal.in_mode("diffusion").defaults == found.model.defaults
    with pytest.raises(sk.SinkscopeError, match="one of diffusion, autoregressive, self_speculation"):
        sk.load(found.folder, mode="backwards")
    with pytest.raises(sk.SinkscopeError, match="decodes in one way"):
        sk.load("tiny-llada", mode="autoregressive")


@pytest.mark.parametrize("mode", ["diffusion", "autoregressive"])
def test_padding_changes_no_row(mode: str) -> None:
    model = newest("nemotron_labs_diffusion").model.in_mode(mode)
    ids = torch.tensor([[9, 9, 9, 4, 5, 6, 7], [4, 5, 6, 7, 8, 9, 10]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
    close(model.logits(ids, mask)[0, 3:], model.logits(ids[:1, 3:])[0])


def test_a_head_that_is_tied_may_be_stored_but_not_differ(tmp_path: Path) -> None:
    found = newest("illada")
    ids = found.tensor(found.facts["forward"]["unpadded"]["input_ids"])
    tensors = load_file(found.folder / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    shutil.copy(found.folder / "config.json", tmp_path)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.equal(sk.load(tmp_path).logits(ids), found.model.logits(ids))
    save_file({**tensors, "lm_head.weight": head + 0.1}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(sk.SinkscopeError, match="tied"):
        sk.load(tmp_path)


def test_lladas_end_tokens_are_refused_in_illada() -> None:
    found = newest("illada")
    ids = torch.tensor([[7, 8, 9]])
    for words in ({"forbid_eos": True, "eos_id": 126081}, {"late_eos": True, "eos_id": 2, "eot_id": 126348}):
        with pytest.raises(sk.SinkscopeError, match="unrelated"):
            sk.decode(found.model, ids, sk.Decode.llada(length=8, **words))


REFUSED = {
    "Stable-DiffCoder": ({"model_type": "llama", "architectures": ["StableDiffcoderForCausalLM"]}, "silently causal"),
    "BD3-LM": ({"model_type": "bd3lm", "architectures": ["BD3LM"]}, "adaptive layer norm"),
    "LLaDA2.2": ({"model_type": "llada2_moe", "block_routing_capacity": 48}, "block routing"),
}


@pytest.mark.parametrize(("config", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_known_and_not_supported_is_refused(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    shutil.copy(newest("illada").folder / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(sk.SinkscopeError, match=why):
        sk.load(tmp_path)


@pytest.mark.parametrize("family", ["nemotron_labs_diffusion", "wedlm", "rnd1", "illada", "diffusion_gemma"])
def test_trace_sinks_masking_and_controls(family: str) -> None:
    """The same calls as for every other family; no key gets more than 1 from each query that sees it."""
    found = newest(family)
    ids = torch.tensor([[7, 8, 9, 10, 11, 12]])
    words: dict[str, Any] = {"length": 8, "steps": 4, "block": 4, "seed": 1, "keep": FLOAT32}
    plain = sk.trace(found.model, ids, **words)
    assert isinstance(plain, sk.Trace) and plain.sinks(sk.Threshold(1.0)).height and plain.heads().height
    assert bool((plain.scores() <= plain.seen_by()[:, None, None] + 1e-3).all())
    for control in (sk.MaskSinks(k=0), sk.MaskPositions(())):
        same = sk.trace(found.model, ids, interventions=[control], **words)
        assert isinstance(same, sk.Trace) and torch.equal(same.canvas, plain.canvas)
    for change in (sk.MaskSinks(k=1), sk.MaskRandom(k=1), sk.MaskRandom(k=1, match="mass"), sk.MaskPositions((1,))):
        with sk.intervene(found.model, change) as active:
            made = sk.trace(found.model, ids, **words)
        assert isinstance(made, sk.Trace) and active.effect.keys and not active.effect.leak
        if isinstance(change, sk.MaskPositions):
            assert float(made.scores()[..., 1].max()) == 0


@pytest.mark.parametrize("mode", ["autoregressive", "self_speculation"])
def test_nemotrons_other_modes_are_traced_and_masked(mode: str) -> None:
    model = newest("nemotron_labs_diffusion").model.in_mode(mode)
    ids = torch.tensor([[7, 8, 9, 10, 11, 12]])
    plain = sk.trace(model, ids, length=6, block=4, keep=FLOAT32)
    assert isinstance(plain, sk.Trace) and plain.causal == (mode == "autoregressive")
    assert bool((plain.scores() <= plain.seen_by()[:, None, None] + 1e-3).all())
    assert torch.equal(plain.canvas[-1, : 6 + 6], sk.decode(model, ids, plain.settings).tokens[0, : 6 + 6])
    with sk.intervene(model, sk.MaskSinks(k=1)) as active:
        sk.trace(model, ids, length=6, block=4)
    assert active.effect.keys and not active.effect.leak
