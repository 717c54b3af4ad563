"""The section on one's own intervention is run as it stands: its file, its lines, its study."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from made_packages import blocks, built, saved, with_path

PAGE = "Intervention"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The page's file, as pip would install it."""
    return built(saved(PAGE, tmp_path / "project"), tmp_path)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=with_path(folder),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_lines_of_the_page(package: Path) -> None:
    (package / "lines.py").write_text(blocks(PAGE, "python")[1])
    done = run(package, "lines.py")
    assert done.returncode == 0, done.stderr
    shares = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    assert 0 < shares["key_share"] < 1 and 0 < shares["mass_share"] < 1 and shares["leak"] == 0


def test_the_study_of_the_page(package: Path) -> None:
    (package / "fading.yaml").write_text(blocks(PAGE, "yaml")[0])
    done = run(package, "-m", "sinkscope", "study", "fading.yaml", "--out", "run", "--workers", "2")
    assert done.returncode == 0, done.stderr
    cells = json.loads((package / "run" / "results.json").read_text())["cells"]
    labels = {cell["label"]: cell for cell in cells}
    assert set(labels) >= {"none", "fade sinks K=1 factor 0", "fade sinks K=1 factor 0.5"}
    assert labels["fade sinks K=1 factor 0.5"]["condition"]["factor"] == 0.5


def test_without_the_package_the_name_is_unknown(package: Path) -> None:
    (package / "fading.yaml").write_text(blocks(PAGE, "yaml")[0])
    (package / "fade_sinks-0.1.0.dist-info" / "entry_points.txt").unlink()
    done = run(package, "-m", "sinkscope", "study", "fading.yaml", "--out", "run")
    assert done.returncode == 2 and "'fade_sinks'" in done.stderr and "Traceback" not in done.stderr


def test_a_package_that_cannot_be_imported_is_named(package: Path) -> None:
    (package / "fading.yaml").write_text(blocks(PAGE, "yaml")[0])
    (package / "fade_sinks.py").write_text("import nothing_of_that_name\n")
    done = run(package, "-m", "sinkscope", "study", "fading.yaml", "--out", "run")
    assert done.returncode == 2 and "fade_sinks" in done.stderr and "Traceback" not in done.stderr
