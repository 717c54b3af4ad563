"""Checkpoints and devices that would load and then compute something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sinkscope as sk
from made_models import make_causal, make_dream, make_llada


@pytest.mark.parametrize("make", [make_llada, make_dream, make_causal])
def test_quantized_weights_are_refused(tmp_path: Path, make: object) -> None:
    folder = make(tmp_path)  # type: ignore[operator]
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(sk.SinkscopeError, match=r"is quantized \(bitsandbytes\)"):
        sk.load(folder)


def test_mps_has_no_float64() -> None:
    with pytest.raises(sk.SinkscopeError, match="float64"):
        sk.load("tiny-llada", device="mps")
