"""Logits and received attention of the small families equal what the authors' own code computes."""

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
from golden_sets import SMALL, SmallGolden, small, small_cases
from sinkscope.attention.forward import Forward, forward_context
from sinkscope.decoding.noisy import known_tokens
from sinkscope.decoding.samplers.mdlm import log_ratios

LOGITS, SUMS = 1e-4, 5e-5


def close(mine: Tensor, theirs: Tensor, atol: float) -> None:
    torch.testing.assert_close(mine, theirs, atol=atol, rtol=0)


def received(model: sk.Model, *args: Any, **words: Any) -> tuple[Tensor, Tensor]:
    """Logits, and what each key received [layer, batch, head, key], a built-in key first."""
    with torch.inference_mode(), sk.observe(model) as seen:
        logits = model.module(*args, **words).logits
    sums = torch.stack([one.sum(2) for one in seen.received])
    own = [one.sum(2) for one in seen.built_in if one is not None]
    return logits, torch.cat([torch.stack(own)[..., None], sums], -1) if own else sums


def at_time(found: SmallGolden, case: dict[str, Any]) -> Tensor | None:
    name = case.get("sigma") or case.get("t")
    return None if name is None else found.tensor(name)


@pytest.mark.parametrize(("found", "case"), small_cases("forward", "mdlm", "gidd", "sedd"))
def test_whole_canvas(found: SmallGolden, case: dict[str, Any]) -> None:
    model, ids, time = found.model_for(case), found.tensor(case["ids"]), at_time(found, case)
    logits, sums = received(model, ids, time=time)
    close(sums, found.tensor(case["received_attention"]), SUMS)
    if found.family == "sedd":
        assert time is not None
        close(log_ratios(logits, ids, time, scaled=True), found.tensor(case["log_score"]), LOGITS)
    else:
        close(logits, found.tensor(case["logits"]), LOGITS)
    if "log_x_theta" in case:
        masked = ids == found.facts["mask_id"]
        logs = known_tokens(logits.clone(), found.facts["mask_id"]).log()[masked][:, : found.facts["mask_id"]]
        close(logs, found.tensor(case["log_x_theta"])[masked][:, : found.facts["mask_id"]], LOGITS)


@pytest.mark.parametrize(("found", "case"), small_cases("forward", "bd3lm"))
def test_blocks(found: SmallGolden, case: dict[str, Any]) -> None:
    model, ids, time = found.model_for(case), found.tensor(case["ids"]), at_time(found, case)
    count, visible = ids.shape[1], found.tensor(case["visible"]).bool()
    places = None
    if case["mode"] == "train":
        ids = torch.cat([ids, found.tensor(case["clean_ids"])], 1)
        places = torch.arange(count).repeat(2)[None]
    logits, sums = received(
        model, ids, attention_mask=visible.view(1, 1, *visible.shape[-2:]), position_ids=places, time=time
    )
    close(logits[:, :count], found.tensor(case["logits"]), LOGITS)
    close(sums, found.tensor(case["received_attention"]), SUMS)
    if case["mode"] == "sample" and not case["time_conditioning"]:
        close(model.logits(ids, block=case["block_size"]), found.tensor(case["logits"]), LOGITS)


@pytest.mark.parametrize(("found", "case"), small_cases("forward", "gidd_v2"))
def test_built_in_key(found: SmallGolden, case: dict[str, Any]) -> None:
    model, ids = found.model_for(case), found.tensor(case["ids"])
    mask = found.tensor(case["mask"]).bool() if "mask" in case else None
    mask = mask[:, None] if mask is not None and mask.dim() == 3 else mask
    logits, sums = received(model, ids, attention_mask=mask)
    close(logits, found.tensor(case["logits"]), LOGITS)
    if mask is None or mask.dim() == 4:  # padded queries count nowhere here
        close(sums, found.tensor(case["received_attention"]), SUMS)
    with torch.inference_mode():
        close(model.module(ids, attention_mask=mask).logits, logits, 1e-5)


@pytest.mark.parametrize("schedule", small("gidd").facts["schedule"], ids=lambda one: str(one["p_uniform"]))
def test_gidds_schedule(schedule: dict[str, Any]) -> None:
    from sinkscope.decoding.samplers.gidd import mixing

    found = small("gidd")
    alpha, noise = found.tensor(schedule["alpha"]).flatten(), found.tensor(schedule["beta_pi"])
    for number, time in enumerate(found.tensor(schedule["t"]).flatten()):
        kept, chances = mixing(time, schedule["p_uniform"], found.facts["vocab_size"], found.facts["mask_id"])
        close(kept, alpha[number], 1e-6)
        close(chances, noise.reshape(len(alpha), -1)[number], 1e-6)


@pytest.mark.parametrize("family", SMALL)
def test_facts_come_from_the_checkpoint(family: str) -> None:
    found = small(family)
    model = found.model
    assert (model.family.name, model.mask_id, model.tokenizer) == (family, found.facts["mask_id"], None)
    assert (model.causal, model.shift, model.family.built_in_key) == (False, False, family == "gidd_v2")
    assert model.block == (4 if family == "bd3lm" else None)
    assert model.eos_id == found.facts.get("eos_id", model.vocabulary - 2)
    assert model.defaults.sampler in model.family.samplers


@pytest.mark.parametrize("family", SMALL)
def test_every_key_is_accounted_for(family: str, tmp_path: Path) -> None:
    found = small(family)
    shutil.copy(found.folder / "config.json", tmp_path)
    tensors = load_file(found.folder / "model.safetensors")
    buffers = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "eps_min", "eps_max")
    key = sorted(name for name in tensors if not name.endswith(buffers))[0]
    changed = {"missing": {name: one for name, one in tensors.items() if name != key}}
    changed["unexpected"] = {**tensors, "blocks.0.attn_qkv.bias": torch.zeros(3)}
    for kind, some in changed.items():
        save_file(some, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(sk.SinkscopeError, match=kind):
            sk.load(tmp_path)


def test_a_missing_size_is_not_guessed(tmp_path: Path) -> None:
    """The default of the authors' class for cond_dim is 129, and no published file has that."""
    found = small("mdlm")
    config = json.loads((found.folder / "config.json").read_text())
    del config["cond_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(found.folder / "model.safetensors", tmp_path)
    with pytest.raises(sk.SinkscopeError, match="cond_dim"):
        sk.load(tmp_path)


def test_sedds_pickle_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(small("sedd").folder / "config.json", tmp_path)
    torch.save(load_file(small("sedd").folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    with pytest.raises(sk.SinkscopeError, match="save_file") as refused:
        sk.load(tmp_path)
    command = str(refused.value)
    assert f"cd {tmp_path} && python -c" in command
    code = command[command.index("python -c") :].split("'")[1]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "command", "exec"), {})
    assert sk.load(tmp_path).family.name == "sedd"


def test_the_time_is_the_share_of_masks_where_nobody_says_it() -> None:
    model = small("gidd").model
    ids = torch.arange(24)[None].remainder(90)
    ids[0, :6] = model.mask_id
    labels = torch.zeros_like(ids)
    with forward_context(Forward(object(), 0, labels, 1, 0, None, 0, time=torch.tensor([0.25]))):
        told = model.logits(ids)
    assert torch.equal(model.logits(ids), told)


@pytest.mark.parametrize("family", SMALL)
def test_the_lens_ends_in_the_models_logits(family: str) -> None:
    model = small(family).model
    ids = torch.arange(12)[None] + 5
    close(sk.lens(model, ids)[-1], model.logits(ids), 1e-5)
    assert sk.lens(model, ids, layers=[0]).shape == (1, 1, 12, model.vocabulary)
