"""A saved model is the same model to sk.load and to transformers, and so is what its module's own save_pretrained writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import sinkscope as sk
from golden_sets import by_family, newer_by_family, newest_by_family
from made_models import make_causal
from sinkscope.errors import CheckpointError

ALL = [*by_family(), *newer_by_family(), *newest_by_family()]
IDS = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])


def same_model(found: sk.Model, model: sk.Model) -> None:
    facts = ("mask_id", "shift", "causal", "context", "eos_ids", "pad_id", "eot_id", "block", "mode", "defaults")
    assert found.family is model.family
    assert {name: getattr(found, name) for name in facts} == {name: getattr(model, name) for name in facts}
    own, theirs = found.module.state_dict(), model.module.state_dict()
    assert own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)
    # Experts may be laid out in memory another way, which moves the last bits.
    torch.testing.assert_close(found.logits(IDS), model.logits(IDS), atol=1e-4, rtol=1e-4)


def as_transformers_loads_it(folder: Path, model: sk.Model) -> None:
    native: Any = getattr(transformers, model.family.native_class or "AutoModelForCausalLM")
    module, told = native.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    own, theirs = model.module.state_dict(), module.state_dict()
    assert own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)
    if model.family.name not in ("wedlm", "diffusion_gemma"):  # whose forwards take other arguments
        with torch.no_grad():
            logits = module.eval()(IDS, use_cache=False, **model.direction()).logits
        # Experts may be laid out in memory another way, which moves the last bits.
        torch.testing.assert_close(logits, model.logits(IDS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("found", ALL)
def test_a_saved_folder_is_the_same_model_to_both(found: Any, tmp_path: Path) -> None:
    model = found.model
    folder = model.save(tmp_path / "saved")
    same_model(sk.load(folder), model)
    as_transformers_loads_it(folder, model)


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream", "tiny-mmada", "tiny-sdar", "tiny-nemotron", "tiny-llama"])
def test_text_in_and_out_stays_the_same(name: str, tmp_path: Path) -> None:
    model, prompt = sk.load(name), "Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?"
    again = sk.load(model.save(tmp_path / "saved"))
    assert torch.equal(again.encode(prompt), model.encode(prompt)) and again.chat_template == model.chat_template
    assert again.defaults == model.defaults
    assert again.generate(prompt, length=16) == model.generate(prompt, length=16)


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-mmada", "tiny-nemotron"])
def test_the_modules_own_method_writes_the_same(name: str, tmp_path: Path) -> None:
    model: Any = sk.load(name)
    model.module.save_pretrained(tmp_path / "own")
    as_transformers_loads_it(tmp_path / "own", model)
    again = sk.load(tmp_path / "own")
    assert again.family is model.family and torch.equal(again.logits(IDS), model.logits(IDS))


def test_half_precision_and_a_wrapped_module(tmp_path: Path) -> None:
    half = sk.load("tiny-llada", dtype="bfloat16")
    again = sk.load(half.save(tmp_path / "half"), dtype="bfloat16")
    assert torch.equal(again.logits(IDS), half.logits(IDS))
    module = transformers.AutoModelForCausalLM.from_pretrained(make_causal(tmp_path / "causal"))
    wrapped = sk.wrap(module, family="llada", mask_id=3)
    same_model(sk.load(wrapped.save(tmp_path / "wrapped")), wrapped)
    assert not any(name.startswith("sinkscope") for name in module.config.to_dict())


def test_a_saved_model_is_saved_again(tmp_path: Path) -> None:
    model = sk.load("tiny-dream")
    once = sk.load(model.save(tmp_path / "once"))
    same_model(sk.load(once.save(tmp_path / "twice")), model)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    model = sk.load("tiny-llada")
    model.save(tmp_path / "there")
    with pytest.raises(CheckpointError, match="new or empty folder"):
        model.save(tmp_path / "there")
    with pytest.raises(CheckpointError, match="without quantization"):
        sk.load("tiny-llada", quantization="int8").save(tmp_path / "packed")
