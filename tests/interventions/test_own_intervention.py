"""The how-to page on one's own intervention is run as it stands: its file, its lines, its study."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "your-own-intervention.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The page's file, as pip would install it."""
    (tmp_path / "fade_sinks.py").write_text(blocks("python")[0], encoding="utf-8")
    info = tmp_path / "fade_sinks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fade-sinks\nVersion: 1.0\n")
    points = blocks("toml")[0].replace('[project.entry-points."sinkscope.interventions"]', "[sinkscope.interventions]")
    (info / "entry_points.txt").write_text(points.replace('"', ""))
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    before = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *([before] if before else [])])}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_lines_of_the_page(package: Path) -> None:
    (package / "lines.py").write_text(blocks("python")[1])
    done = run(package, "lines.py")
    assert done.returncode == 0, done.stderr
    shares = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    assert 0 < shares["key_share"] < 1 and 0 < shares["mass_share"] < 1 and shares["leak"] == 0


def test_the_study_of_the_page(package: Path) -> None:
    (package / "fading.yaml").write_text(blocks("yaml")[0])
    done = run(package, "-m", "sinkscope", "study", "fading.yaml", "--out", "run", "--workers", "2")
    assert done.returncode == 0, done.stderr
    cells = json.loads((package / "run" / "results.json").read_text())["cells"]
    labels = {cell["label"]: cell for cell in cells}
    assert set(labels) >= {"none", "fade sinks K=1 factor 0", "fade sinks K=1 factor 0.5"}
    assert labels["fade sinks K=1 factor 0.5"]["condition"]["factor"] == 0.5


def test_without_the_package_the_name_is_unknown(package: Path) -> None:
    (package / "fading.yaml").write_text(blocks("yaml")[0])
    (package / "fade_sinks-1.0.dist-info" / "entry_points.txt").unlink()
    done = run(package, "-m", "sinkscope", "study", "fading.yaml", "--out", "run")
    assert done.returncode == 2 and "not 'fade_sinks'" in done.stderr and "Traceback" not in done.stderr


def test_a_package_that_cannot_be_imported_is_named(package: Path) -> None:
    (package / "fading.yaml").write_text(blocks("yaml")[0])
    (package / "fade_sinks.py").write_text("import nothing_of_that_name\n")
    done = run(package, "-m", "sinkscope", "study", "fading.yaml", "--out", "run")
    assert done.returncode == 2 and "fade_sinks" in done.stderr and "Traceback" not in done.stderr
