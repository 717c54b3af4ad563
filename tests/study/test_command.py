"""`sinkscope study` and `sinkscope compare` at the command line: which study, which models, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.cli.app import run
from sinkscope.study import plan as forecast
from sinkscope.study.plan import Forecast
from sinkscope.study.schema import Study


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """The plans that `study --show` was asked to show."""
    found: list[Study] = []

    real = forecast.forecast(Study.load("quick"))

    def estimated(plan: Study) -> Forecast:
        found.append(plan)
        return real

    monkeypatch.setattr(forecast, "here", estimated)
    return found


@pytest.mark.parametrize(
    ("words", "name", "models"),
    [
        (["--models", "tiny-llama", "tiny-llada"], "paper", ["tiny-llama", "tiny-llada"]),
        (["--models", "tiny-llama", "a/b", "c/d"], "paper", ["tiny-llama", "a/b", "c/d"]),
        (["--models", "tiny-llama"], "paper", ["tiny-llama"]),
        (["quick", "--models", "tiny-llama", "tiny-llada"], "quick", ["tiny-llama", "tiny-llada"]),
        (["--models", "tiny-llama, tiny-llada", "quick"], "quick", ["tiny-llama", "tiny-llada"]),
        (["quick.yaml", "-m", "tiny-llama", "-m", "tiny-llada"], "quick", ["tiny-llama", "tiny-llada"]),
    ],
)
def test_models_after_the_option(plans: list[Study], words: list[str], name: str, models: list[str]) -> None:
    assert run(["study", "--show", *words]) == 0
    assert [(plan.name, list(plan.models)) for plan in plans] == [(name, models)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", ""], "Expected a model after --models"),
        (["--models", ","], "Expected a model after --models"),
        (["quick", "--models", "tiny-llada", ""], "Expected a model after --models"),
        (["papre"], "a study file, or one of"),
        (["nowhere.yaml", "--models", "tiny-llada"], "a study file, or one of"),
        (["quick", "--device", "x"], "device is wrong"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    plans: list[Study], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["study", "--show", *words]) == 2 and not plans
    captured = capsys.readouterr().err
    assert said in captured and captured.count("\n") == 1


def test_compare_of_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text("[]")
    assert run(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert "is damaged" in capsys.readouterr().err
