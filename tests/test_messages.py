"""Messages that once misled: each says what was expected, what came, and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import sinkscope as sk
from sinkscope.cli.app import run as command
from sinkscope.errors import StudyError

ROOT = Path(__file__).parents[1]
STUDY = {
    "name": "x",
    "models": ["tiny-llada"],
    "tasks": [{"name": "arithmetic", "problems": 6}],
    "conditions": ["none"],
}


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert command(list(words)) == code
    return " ".join(capsys.readouterr().err.split())


def quick_run(folder: Path, **change: object) -> Path:
    sk.run({**STUDY, **change}, folder, workers=1)
    return folder


def test_a_task_that_is_mistyped_is_named_with_what_it_may_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "--model", "tiny-llada", "--tasks", "gsm9k", "--data", str(tmp_path)]
    assert "got 'gsm9k': did you mean gsm8k?" in said(capsys, *words)


def test_the_results_of_a_run_have_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = quick_run(tmp_path / "run")
    assert command(["report", str(folder), "--text"]) == 0
    expected = capsys.readouterr().out
    assert command(["report", str(folder / "results.json"), "--text"]) == 0
    assert capsys.readouterr().out == expected


def test_sinks_of_a_folder_say_what_is_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traced = quick_run(tmp_path / "traced", trace={"problems": 1})
    told = said(capsys, "sinks", str(traced))
    assert "is a folder with 1 of them" in told
    assert command(["sinks", re.search(r"such as (\S+)", told)[1]]) == 0  # type: ignore[index]
    capsys.readouterr()
    assert "is a run that kept no traces" in said(capsys, "sinks", str(quick_run(tmp_path / "plain")))
    assert "is a folder without one" in said(capsys, "sinks", str(tmp_path))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"problems": 6}, "line 1: problems is not a field that is known here; it stands inside tasks or trace"),
        ({"modles": ["a"]}, r"modles is not a field that is known here; did you mean models\?"),
        ({"tasks": [{"name": "arithmetic", "problms": 6}]}, r"tasks\[0\].problms .* did you mean problems\?"),
        ({"tasks": [{"name": "arithmetik", "problems": 6}]}, r"got 'arithmetik': did you mean arithmetic\?"),
    ],
)
def test_a_field_that_is_mistyped_is_named(change: dict[str, object], told: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        yaml.safe_dump({**change, **{name: one for name, one in STUDY.items() if name not in change}}, sort_keys=False)
    )
    with pytest.raises(StudyError, match=told):
        sk.Study.load(file)


def test_runs_without_a_common_cell_are_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = quick_run(tmp_path / "a"), quick_run(tmp_path / "b", models=["tiny-dream"])
    told = said(capsys, "compare", str(first), str(second))
    assert "no cell in common: the first has the models tiny-llada, the second tiny-dream" in told


def test_a_folder_that_is_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "tiny-llada", "Tom has 3 apples.", "--length", "4", "--steps", "2"]
    told = said(capsys, *words, "-o", str(tmp_path / "typo" / "one.trace"), code=0)
    assert "typo does not exist and will be made for one.trace" in told
    assert "will be made" not in said(capsys, *words, "-o", str(tmp_path / "two.trace"), code=0)


def test_signs_stand_behind_what_they_are_of() -> None:
    text = sk.Run.load(ROOT / "results" / "paper" / "tiny").summary(full=True)
    assert not re.search(r"[+*]+\d+ \[", text) and re.search(r"\d+ \[\d+–\d+\]\*", text)
    assert len(text.splitlines()) < 300 and max(map(len, text.splitlines())) <= 80


def test_help_shows_examples_whole_at_80_columns() -> None:
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-m", "sinkscope"]
    shown = subprocess.run([*words, "eval", "--help"], env=environment, capture_output=True, text=True, check=True)
    assert "mask_sinks:k=5 " in shown.stdout


def test_a_hub_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    environment = {
        **os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    environment.pop("HF_HUB_OFFLINE", None)
    words = [sys.executable, "-m", "sinkscope", "trace", "someone/model", "hello"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "someone/model is not a folder here" in done.stderr


@pytest.mark.parametrize(
    "model",
    [
        "GSAI-ML/LLaDA-8B-Instruct", "Dream-org/Dream-v0-Instruct-7B", "Gen-Verse/MMaDA-8B-MixCoT",
        "meta-llama/Llama-3.1-8B-Instruct",
    ],
)  # fmt: skip
def test_the_papers_models_are_planned_without_a_hub(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert command(["plan", "table1", "--models", model, "--device", "H100"]) == 0
    assert model.rpartition("/")[2] in capsys.readouterr().out


def test_an_unknown_model_is_told_the_one_it_may_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["trace", "tiny-lada", "hello"], ["study", "quick", "--models", "tiny-lada", "-o", str(tmp_path)]):
        assert "did you mean tiny-llada?" in said(capsys, *words)


def test_the_summary_names_the_page_by_its_command(tmp_path: Path) -> None:
    folder = quick_run(tmp_path / "run")
    page = next(line for line in sk.Run.load(folder).summary().splitlines() if line.startswith("Page:"))
    assert page.endswith(f"sinkscope view {folder}") and "…" not in page
