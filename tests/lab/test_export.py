"""What is exported has the keys, shapes and fields of the real families, and loads to the same logits."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lab.errors import TrainingError
from lab.export import DTYPE, export, from_llada, to_llada
from lab.tiny import TinyRun
from lab.train import train
from sinkscope.models.load import load

GOLDEN = Path(__file__).parent.parent / "golden"


def keys(folder):
    found = []
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found += file.keys()
    return found


def patterns(names):
    return {re.sub(r"\d+", "N", name) for name in names}


@pytest.mark.parametrize("family", ["llada", "mmada", "dream"])
def test_keys_and_fields_are_those_of_the_golden_checkpoints(small, tmp_path, family):
    run = TinyRun(small(family=family), tmp_path / "run")
    folder = export(run.recipe, run.optimisation.mean_weights(), run.tokenizer, tmp_path / "model")
    assert patterns(keys(folder)) == patterns(keys(GOLDEN / family))
    mine, golden = (json.loads((f / "config.json").read_text()) for f in (folder, GOLDEN / family))
    assert set(mine) - set(golden) <= {"sinkscope_decode", "torch_dtype"}
    assert mine["model_type"] == golden["model_type"]
    assert mine["architectures"] == golden["architectures"]
    assert {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"} <= {p.name for p in folder.iterdir()}


@pytest.mark.parametrize("family", ["llama", "llada", "mmada", "dream"])
def test_loaded_logits_are_those_of_the_rounded_weights(small, tmp_path, family):
    run = TinyRun(small(family=family), tmp_path / "run")
    folder = export(run.recipe, run.optimisation.mean_weights(), run.tokenizer, tmp_path / "model")
    model = load(folder)
    assert (model.family.name, model.shift, model.causal) == (family, run.recipe.shift, run.recipe.causal)
    assert model.mask_id == (None if family == "llama" else run.mask_id)
    with torch.no_grad():
        for parameter in run.module.parameters():
            parameter.copy_(parameter.to(DTYPE).float())
    ids = torch.randint(8, 100, (2, 20), generator=torch.Generator().manual_seed(0))
    run.module.eval()
    with torch.no_grad():
        expected = run.module(ids, use_cache=False).logits
    assert torch.allclose(model.logits(ids), expected, atol=1e-5)
    text = "Tom has 3 apples. Then Tom finds 4 more.\nHow many apples are there now?"
    assert model.encode(text)[0].tolist() == run.coder.prompts([text])[0]
    assert isinstance(model.generate(text), str)


def test_names_go_there_and_back(small, tmp_path):
    run = TinyRun(small(), tmp_path)
    names = list(run.optimisation.parameters)
    assert [from_llada(to_llada(name)) for name in names] == names


def test_a_dream_starts_from_a_llama_and_an_mmada_from_a_llada(small, tmp_path):
    parent = train(small(family="llama", steps=2), tmp_path / "llama", quiet=True)
    dream = TinyRun(small(family="dream", start="tiny-llama"), tmp_path / "dream", start=parent)
    stored = load_file(parent / "model.safetensors")
    for name, parameter in dream.optimisation.parameters.items():
        if name.endswith("bias"):
            assert not parameter.any()
        else:
            assert torch.equal(parameter, stored[name].float())
    parent = train(small(family="llada", steps=2), tmp_path / "llada", quiet=True)
    mmada = TinyRun(small(family="mmada", start="tiny-llada"), tmp_path / "mmada", start=parent)
    rows = load_file(parent / "model.safetensors")["model.transformer.wte.weight"].float()
    own = mmada.optimisation.parameters["model.embed_tokens.weight"]
    assert own.shape[0] > rows.shape[0]
    assert torch.equal(own[: rows.shape[0]], rows)


def test_weights_of_another_size_are_refused(small, tmp_path):
    parent = train(small(family="llama", steps=1), tmp_path / "llama", quiet=True)
    wider = {"width": 64, "layers": 2, "heads": 2, "ffn": 48, "positions": 128}
    with pytest.raises(TrainingError, match="same size"):
        TinyRun(small(family="dream", start="tiny-llama", shape=wider), tmp_path / "a", start=parent)
    deeper = {"width": 32, "layers": 3, "heads": 2, "ffn": 48, "positions": 128}
    with pytest.raises(TrainingError, match="do not fit"):
        TinyRun(small(family="dream", start="tiny-llama", shape=deeper), tmp_path / "b", start=parent)
    with pytest.raises(TrainingError, match="is no checkpoint"):
        TinyRun(small(family="dream", start="tiny-llama"), tmp_path / "c", start=tmp_path)
