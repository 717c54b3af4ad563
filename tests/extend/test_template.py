"""The template project as another package: built, installed elsewhere, and used by every engine without being named."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from made_packages import with_path
from registries import restored

TEMPLATE = Path(__file__).parents[2] / "examples" / "sinkscope-template"
DRIVER = Path(__file__).with_name("template_study.py")
SAME = ("results.json", "results.parquet", "study.yaml")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip installed a fresh wheel of the template."""
    folder = tmp_path_factory.mktemp("template")
    quiet = ["-q", "--no-deps", "--no-index", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", *quiet, "--no-build-isolation", "-w", str(folder), str(TEMPLATE)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", *quiet, "--no-compile", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def make_checkpoint(folder: Path) -> None:
    """By the template's own function, without making its family known in this process."""
    spec = importlib.util.spec_from_file_location("two_way", TEMPLATE / "src" / "sinkscope_template" / "two_way.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with restored():
        spec.loader.exec_module(module)
        module.make_checkpoint(folder)


def python(site: Path, folder: Path, *words: str) -> None:
    environment = {**with_path(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def runs(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template's study by every engine; one process, since starting one is what takes time."""
    folder = tmp_path_factory.mktemp("runs")
    make_checkpoint(folder / "checkpoint")
    engines = ["local", "shards", *(["ray"] if importlib.util.find_spec("ray") else [])]
    python(site, folder, str(DRIVER), str(TEMPLATE / "study.yaml"), str(folder), *engines)
    return folder


def same_bytes(first: Path, second: Path) -> None:
    for name in SAME:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_two_local_workers_find_all_of_it(runs: Path) -> None:
    found = json.loads((runs / "local" / "results.json").read_text())
    cells = {cell["label"]: cell for cell in found["cells"]}
    assert set(cells) == {"none", "noop", "fade sinks K=1 factor 0", "warmer temperature 0.5"}
    assert {(cell["task"], cell["family"], cell["n"]) for cell in cells.values()} == {("counting", "two_way", 2)}
    assert cells["fade sinks K=1 factor 0"]["mass_share"] > 0
    assert {row["rule"] for row in found["dynamics"]} == {"near_top"}
    assert found["run"]["models"][0]["settings"][""]["commit"] == "leftmost"


def test_a_run_records_the_packages_that_it_depends_on(runs: Path) -> None:
    about = json.loads((runs / "local" / "run.json").read_text())
    assert about["versions"]["sinkscope-template"] == "0.1.0"


def test_shards_find_it_and_merge_to_the_same_bytes(runs: Path) -> None:
    same_bytes(runs / "merged", runs / "local")


def test_ray_finds_it_and_gives_the_same_bytes(runs: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    same_bytes(runs / "ray", runs / "local")


def test_the_protocol_belongs_to_its_checkpoint(site: Path, installed: Callable[[Path], None]) -> None:
    from sinkscope.tasks import protocol

    installed(site)
    assert protocol.protocol_for("example/two-way-1B").name == "two-way-authors"
    assert protocol.protocol_for("example/another").name == "harness"
