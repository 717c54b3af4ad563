"""A study of models that decode in other ways: random canvases in transformers' own generate, and a causal text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from golden_sets import HERE
from made_models import save_tokenizer
from sinkscope.study.run import run
from sinkscope.study.schema import Study


@pytest.mark.parametrize("family", ["diffusion_gemma", "nemotron_labs_diffusion"])
def test_controls_hold(family: str, tmp_path: Path) -> None:
    folder = tmp_path / family
    shutil.copytree(HERE / "newest" / family, folder, ignore=shutil.ignore_patterns("golden.*"))
    save_tokenizer(folder, eos_token="</s>")
    study = Study.from_dict(
        {
            "name": "newest",
            "models": [str(folder)],
            "tasks": [{"name": "arithmetic", "problems": 2}],
            "decode": {"length": 8, "steps": 2},
            "draws": 200,
            "conditions": ["none", "noop", {"name": "mask_sinks", "k": 1}, {"name": "mask_random", "k": 1}],
            "trace": {"problems": 1, "keep": 1},
        }
    )
    run(study, tmp_path / "run", workers=1)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    cells = {cell["condition"]["name"]: cell for cell in results["cells"]}
    assert {"none", "noop", "mask_sinks", "mask_random"} <= set(cells)
    assert cells["noop"]["correct"] == cells["none"]["correct"]
    assert list((tmp_path / "run" / "traces").glob("*.safetensors"))
