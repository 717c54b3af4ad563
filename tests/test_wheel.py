"""The package away from its repository: a wheel, another folder, and everything that its messages point to."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST = 30_000_000  # bytes; the tiny family's weights are most of it


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a fresh wheel was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    quiet = ["-q", "--no-deps", "--no-index", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", *quiet, "--no-build-isolation", "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("sinkscope-*.whl")
    assert wheel.stat().st_size < LARGEST
    subprocess.run([*pip, "install", *quiet, "--no-compile", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def run(site: Path, cwd: Path, *words: str) -> str:
    """The output of the installed command, started elsewhere; PYTHONPATH comes before any editable install."""
    environment = {**os.environ, "PYTHONPATH": str(site), "HOME": str(cwd), "COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_study_report_and_figures_work_from_a_wheel(site: Path, tmp_path: Path) -> None:
    where = run(site, tmp_path, "-c", "import sinkscope; print(sinkscope.__file__)")
    assert Path(where.strip()).is_relative_to(site)
    said = run(site, tmp_path, "-m", "sinkscope", "study", "quick", "-n", "2", "--workers", "1")
    said += run(site, tmp_path, "-m", "sinkscope", "report", "runs/quick")
    said += run(site, tmp_path, "-m", "sinkscope", "figures", "runs/quick", "--format", "svg")
    paths = re.findall(r"runs/[\w./-]*\w", said)
    assert len(paths) > 8 and all((tmp_path / path).exists() for path in paths)
    assert (tmp_path / "runs/quick/report.html").stat().st_size > 100_000
    assert not re.search(
        r"\bdocs/|\w+\.md\b", said + run(site, tmp_path, "-m", "sinkscope", "report", "runs/quick", "--text", "--full")
    )


def test_the_wheel_holds_the_instrument_alone(site: Path, tmp_path: Path) -> None:
    packages = {path.name for path in site.iterdir() if path.is_dir() and path.suffix != ".dist-info"}
    assert packages - {"bin"} == {"sinkscope"}
    assert not list(site.rglob("recipes"))
    assert not (site / "sinkscope" / "training").exists()
    known = run(site, tmp_path, "-c", "from importlib.util import find_spec; print(find_spec('lab'))")
    assert known.strip() == "None"


def test_no_message_points_into_the_repository() -> None:
    wrong = []
    for path in sorted((ROOT / "src" / "sinkscope").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and id(node) not in prose else None
            if isinstance(text, str) and re.search(r"\bdocs/|CONTRIBUTING|CHANGELOG|Makefile|\bexamples/", text):
                wrong.append((path.name, text))
    assert not wrong
