"""`sinkscope plan`: from config.json alone, with what does not fit told, and within a factor of 2 of measured runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from sinkscope.cli.app import run as command
from sinkscope.models.hub import find_in_zoo
from sinkscope.study.plan import forecast
from sinkscope.study.schema import Study

ROOT = Path(__file__).parents[2]
LLADA_8B = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 4096, "n_layers": 32, "n_heads": 32,
    "n_kv_heads": 32, "mlp_hidden_size": 12288, "embedding_size": 126464, "vocab_size": 126464,
    "max_sequence_length": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "mask_token_id": 126336,
    "eos_token_id": 126081, "pad_token_id": 126081,
}  # fmt: skip


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder with the config.json of LLaDA-8B and nothing else."""
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text(json.dumps(LLADA_8B))
    return tmp_path / "large"


def test_a_plan_needs_nothing_but_config_json(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "quick", "--models", str(large / "config.json"), "--json", "--device"]
    assert command([*words, "H100"]) == 0
    found = json.loads(capsys.readouterr().out)
    (model,) = found["models"]
    assert model["parameters"] == 8_015_581_184 and model["weights"] == 2 * model["parameters"]
    assert found["estimate"] is True and found["fits"] is True
    hours = list(found["hours"].values())
    assert hours == sorted(hours, reverse=True)  # more workers never take longer
    assert command([*words, "RTX 4090", "--dtype", "float32"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is False  # 32 GB into 24


def test_what_does_not_fit_is_said_in_words(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["plan", "quick", "--models", str(large), "--device", "RTX 4090", "--dtype", "float32"]) == 0
    assert "does NOT fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device", "abacus"], "abacus"),
        (["--models", "no-such-model"], "no-such-model"),
    ],
)
def test_bad_words_are_one_sentence(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["plan", "quick", *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sinkscope: ")]
    assert len(said) == 1 and told in said[0]


def test_more_work_costs_more(tmp_path: Path) -> None:
    folder = tmp_path / "only-config"
    folder.mkdir()
    source = find_in_zoo("tiny-llada")
    assert source is not None
    shutil.copy(source / "config.json", folder)
    study = Study.load("quick").changed(models=[str(folder)], problems=2)
    small, large = forecast(study), forecast(study.changed(problems=8))
    assert large.models[0].flops > 2 * small.models[0].flops and large.disk > small.disk
    assert large.models[0].seconds > 2 * small.models[0].seconds


def test_the_committed_comparison_is_within_a_factor_of_two() -> None:
    """lab/results/plan.md: planned by assumed rates against the CPU seconds of every unit, by model."""
    times = json.loads((ROOT / "lab" / "results" / "scheduling-units.json").read_text())
    measured: dict[str, float] = {}
    for row in times["units"]:
        name = row["unit"]["model"]
        measured[name] = measured.get(name, 0.0) + row["seconds"]
    table = (ROOT / "lab" / "results" / "plan.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w.-]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", table, re.MULTILINE)
    assert {name for name, *_ in rows} == set(measured) and "smollm2-135m" in measured
    for name, planned, spent, ratio in rows:
        assert abs(measured[name] - float(spent)) < 0.1  # the table is of the committed times
        assert abs(float(planned) / float(spent) - float(ratio)) < 0.02
        assert 0.5 <= float(ratio) <= 2
