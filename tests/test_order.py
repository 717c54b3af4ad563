"""The order of the packages: held here and now, and a copy with one import that points right is caught."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINT = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"]

pytest.importorskip("importlinter", reason="import-linter is not installed (extra: dev)")


def linted(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(folder / "src"), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    return subprocess.run(LINT, check=False, cwd=folder, env=environment, capture_output=True, text=True)


def copied(folder: Path) -> Path:
    """Every module and the contracts, without weights."""
    shutil.copytree(ROOT / "lab", folder / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("zoo", "__pycache__", "explorer"))
    shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
    return folder


def test_imports_point_one_way() -> None:
    done = linted(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("sinks/rules.py", "\n\ndef late():\n    from sinkscope.report import write\n    return write\n"),
        ("attention/tiled.py", "\nimport sinkscope.study\n"),
        ("tracing/record.py", "\nif TYPE_CHECKING:\n    from sinkscope.tasks.harness import HarnessLM\n"),
        ("tasks/reasoning.py", "\n\ndef round_about():\n    from sinkscope.study.run import run\n    return run\n"),
    ],
)
def test_an_import_that_points_right_is_caught(tmp_path: Path, module: str, line: str) -> None:
    folder = copied(tmp_path)
    path = folder / "src" / "sinkscope" / module
    path.write_text(path.read_text(encoding="utf-8") + line, encoding="utf-8")
    done = linted(folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Imports point one way BROKEN" in done.stdout
    assert module.removesuffix(".py").replace("/", ".") in done.stdout


def test_the_package_does_not_know_the_laboratory(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    path = folder / "src" / "sinkscope" / "study" / "store.py"
    path.write_text(
        path.read_text(encoding="utf-8") + "\n\ndef late():\n    from lab import recipe\n    return recipe\n"
    )
    done = linted(folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "The package does not know the laboratory BROKEN" in done.stdout


def test_a_package_without_a_place_is_caught(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    (folder / "src" / "sinkscope" / "helpers.py").write_text('"""No place in the order."""\n')
    done = linted(folder)
    assert done.returncode == 1
    assert "sinkscope.helpers" in done.stdout


def test_the_exception_that_stays_is_named() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert not settings.get("exclude_type_checking_imports", False)
    contract = next(one for one in settings["contracts"] if one["id"] == "order")
    assert contract["ignore_imports"][0] == "sinkscope.models.model -> sinkscope.decoding"
