"""The command that trains, and the one that says where it went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lab.train import main


def test_a_recipe_is_trained_and_a_second_call_resumes(
    small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "small.yaml", tmp_path / "run"
    file.write_text(yaml.safe_dump(small(steps=2).to_dict()), encoding="utf-8")
    assert main([str(file), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"recipe": str(file), "folder": str(out), "model": str(out / "model")}
    assert (out / "model" / "config.json").is_file()
    assert main([str(file), "--out", str(out)]) == 0
    assert main([str(file), "--out", str(out), "--no-resume"]) == 2
    assert main([str(tmp_path / "none.yaml")]) == 2
