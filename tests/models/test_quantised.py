"""Packed weights: by torchao for every family, by transformers for its own classes, and in a model that is wrapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sinkscope.tracing.states import drift

import sinkscope as sk
from made_models import make_causal
from sinkscope.errors import CheckpointError
from sinkscope.models.weights import is_finite, unpack

pytest.importorskip("torchao")
IDS = torch.randint(4, 60, (1, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def by_bits() -> dict[str | None, Any]:
    return {scheme: sk.load("tiny-llada", quantization=scheme) for scheme in (None, "int8", "int4")}


def test_weights_are_packed_and_all_else_stays(by_bits: dict[str | None, Any]) -> None:
    plain = by_bits[None]
    for scheme, levels in (("int8", 255), ("int4", 16)):
        model = by_bits[scheme]
        weight, before = (one.module.model.layers[0].self_attn.q_proj.weight.detach() for one in (model, plain))
        assert type(weight) is not torch.nn.Parameter and is_finite(weight)
        assert unpack(weight)[0, :32].unique().numel() <= levels
        off = float((unpack(weight) - before).abs().max() / before.abs().max())
        assert 0 < off < (0.01 if scheme == "int8" else 0.2)
        assert torch.equal(model.module.lm_head.weight, plain.module.lm_head.weight)
        assert model.quantization == scheme == model.identity()["quantization"] and scheme in repr(model)
    assert len({model.fingerprint for model in by_bits.values()}) == 3
    assert plain.quantization is None and "quantization" not in plain.identity()


def test_a_forward_is_that_of_the_unpacked_numbers(by_bits: dict[str | None, Any]) -> None:
    for scheme in ("int8", "int4"):
        slow = sk.load("tiny-llada")
        with torch.no_grad():
            for (name, part), packed in zip(
                slow.module.named_parameters(), by_bits[scheme].module.parameters(), strict=True
            ):
                assert part.shape == packed.shape, name
                part.copy_(unpack(packed))
        assert torch.allclose(slow.logits(IDS), by_bits[scheme].logits(IDS), atol=1e-3)


def test_trace_mask_lens_and_check(by_bits: dict[str | None, Any]) -> None:
    model = by_bits["int8"]
    made = sk.trace(model, "Tom has 12 apples.", length=8, steps=8, interventions=sk.MaskSinks(k=1))
    assert made.model["quantization"] == "int8" and made.received is not None
    assert sk.lens(model, "Tom has 12 apples.", layers=[-1]).isfinite().all()
    assert all(one.status != "failed" for one in sk.checkup(model))


def test_drift_grows_with_fewer_bits(by_bits: dict[str | None, Any]) -> None:
    plain = by_bits[None]
    none, eight, four = (drift(plain, by_bits[scheme], IDS, epsilon=0.1) for scheme in (None, "int8", "int4"))
    assert (none.logit_max, none.moved, none.sinks_new, none.top1) == (0.0, 0.0, 0, 1.0) and none.kl < 1e-6
    assert 0 < eight.logit_mean < four.logit_mean and 0 < eight.kl < four.kl and 0 < eight.moved < four.moved
    assert eight.sinks == four.sinks > 0 and 0 <= (four.sinks_kept or 0) <= 1
    with pytest.raises(sk.SinkscopeError, match="sizes differ"):
        drift(plain, sk.load("planted-none"), IDS[:, :4] % 8)


def test_check_measures_the_drift() -> None:
    rows = {one.name: one for one in sk.checkup("tiny-dream", quantization="int8")}
    assert all(one.status != "failed" for one in rows.values())
    assert 0 < float(rows["drift"].values["logit_mean"] or 0) < 1 and rows["drift"].values["positions"]
    assert "values" not in rows["loads"].to_dict() and rows["drift"].to_dict()["values"]["top1"] > 0.9


def test_what_transformers_packs_is_wrapped_or_loaded(tmp_path: Path) -> None:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import AutoModelForCausalLM, TorchAoConfig

    folder = make_causal(tmp_path / "plain")
    theirs = AutoModelForCausalLM.from_pretrained(folder, quantization_config=TorchAoConfig(Int8WeightOnlyConfig()))
    wrapped = sk.wrap(theirs)
    assert wrapped.quantization == "torchao" and wrapped.fingerprint == sk.wrap(theirs).fingerprint
    theirs.save_pretrained(tmp_path / "packed")  # its config.json names the packing
    stored = sk.load(tmp_path / "packed")
    assert stored.quantization == "torchao" and torch.equal(stored.logits(IDS), wrapped.logits(IDS))
    with pytest.raises(CheckpointError, match="already"):
        sk.load(tmp_path / "packed", quantization="int8")


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "awq", "bits": 4, "group_size": 32},
        {"quant_method": "compressed-tensors", "config_groups": {}},
    ],
    ids=lambda config: config["quant_method"],
)
def test_a_packed_checkpoint_whose_package_is_missing_says_so(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = make_causal(tmp_path / "b")
    changed = json.loads((folder / "config.json").read_text()) | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(CheckpointError, match="cannot be used") as raised:
        sk.load(folder)
    assert "pip install" in str(raised.value) and "\n" not in str(raised.value)
