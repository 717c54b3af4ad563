"""A study of models that decode in other ways: random canvases in transformers' own generate, and a causal text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from golden_sets import HERE
from made_models import save_tokenizer
from sinkscope.errors import CheckpointError, StudyError
from sinkscope.results.text import cut
from sinkscope.study.plan import forecast
from sinkscope.study.run import run
from sinkscope.study.schema import Study, name_and_mode
from sinkscope.study.shards import Shard, merge, run_shard


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


SMALL = {
    "name": "modes",
    "chunk": 1,  # self-speculation decodes one prompt at a time
    "tasks": [{"name": "recall", "problems": 2}],
    "decode": {"length": 8},
    "draws": 200,
    "conditions": ["none", "noop", {"name": "mask_sinks", "k": 1}, {"name": "mask_random", "k": 1, "for": "diffusion"}],
    "trace": {"problems": 1, "keep": 1},
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("models") / "one"
    shutil.copytree(HERE / "newest" / "nemotron_labs_diffusion", folder, ignore=shutil.ignore_patterns("golden.*"))
    save_tokenizer(folder, eos_token="</s>")
    models = [{"name": str(folder), "mode": mode} for mode in ("autoregressive", "diffusion", "self_speculation")]
    return Study.from_dict({**SMALL, "models": models})


def test_one_checkpoint_in_every_mode_is_as_many_models(both: Study, tmp_path: Path) -> None:
    """The mode decides which conditions are for it and which half of the claims; parts of a run add up to the whole."""
    run(both, tmp_path / "whole", workers=1)
    found = json.loads((tmp_path / "whole" / "results.json").read_text())
    names = ["one (autoregressive)", "one (diffusion)", "one (self_speculation)"]
    assert [model["name"] for model in found["run"]["models"]] == names
    assert [model["causal"] for model in found["run"]["models"]] == [True, False, False]
    ran = {(cell["model"], cell["condition"]["name"]) for cell in found["cells"]}
    assert (names[0], "mask_random") not in ran and (names[1], "mask_random") in ran
    claimed = {(row["model"], row["name"]) for row in found["claims"]}
    assert (names[0], "sink_at_start") in claimed and (names[1], "sink_at_start") not in claimed
    assert {row["paper_model"] for row in found["claims"]} == {None}
    for part in (1, 2):
        run_shard(both, Shard(part, 2), tmp_path / f"part-{part}", workers=1)
    merge([tmp_path / "part-1", tmp_path / "part-2"], tmp_path / "merged")
    merged = json.loads((tmp_path / "merged" / "results.json").read_text())
    assert merged["cells"] == found["cells"] and merged["dynamics"] == found["dynamics"]


def test_a_mode_is_read_written_planned_and_shown(both: Study) -> None:
    assert Study.from_dict(both.to_dict()) == both
    assert [name_and_mode(label)[1] for label in both.models] == ["autoregressive", "diffusion", "self_speculation"]
    assert name_and_mode("a (b)") == ("a (b)", None) and name_and_mode(" (diffusion)")[1] is None
    planned = {model.model: model.forwards for model in forecast(both).models}
    assert len(planned) == 3 and all(planned.values())
    assert len({cut(name, 11) for name in planned}) == 3 and all(len(cut(name, 11)) == 11 for name in planned)


@pytest.mark.parametrize(
    "entry",
    [{"name": "tiny-llama"}, {"mode": "diffusion"}, {"name": "tiny-llama", "mode": "both"}, {"name": 3, "mode": "diffusion"},
     {"name": " ", "mode": "diffusion"}, {"name": "tiny-llama", "mode": ["diffusion"]},
     {"name": "tiny-llama", "mode": "diffusion", "k": 1}, {}],
)  # fmt: skip
def test_a_mode_that_is_none_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="models"):
        Study.from_dict({**SMALL, "models": [entry]})


def test_a_mode_of_a_model_that_has_one_way_is_refused(tmp_path: Path) -> None:
    study = Study.from_dict({**SMALL, "models": [{"name": "tiny-llama", "mode": "autoregressive"}]})
    with pytest.raises(CheckpointError, match="decodes in one way"):
        run(study, tmp_path / "run", workers=1)
    with pytest.raises(StudyError, match="mode"):
        Study.from_dict({**SMALL, "models": ["tiny-llada"], "decode": {"mode": "diffusion"}})
