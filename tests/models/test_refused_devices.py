"""Checkpoints and devices that would load and then compute something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sinkscope as sk
from made_models import make_causal, make_dream, make_llada


@pytest.mark.parametrize(
    ("make", "method"),
    [(make_llada, "bitsandbytes"), (make_llada, "mxfp4"), (make_dream, "mxfp4"), (make_causal, "fp8")],
)
def test_quantised_weights_that_are_refused(tmp_path: Path, make: object, method: str) -> None:
    """Converted families would read packed numbers as weights; other methods may run kernels from the Hub."""
    folder = make(tmp_path)  # type: ignore[operator]
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(sk.SinkscopeError, match="is quantised"):
        sk.load(folder)


def test_mps_has_no_float64() -> None:
    with pytest.raises(sk.SinkscopeError, match="mps"):
        sk.load("tiny-llada", device="mps")
