"""`table1` in shards, and killed and begun again: the files are those of the whole run, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sinkscope.cli.app import run as command

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (extra: eval)")

DATA = Path(os.environ.get("SINKSCOPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (DATA / "gsm8k_test.jsonl").is_file(), reason=f"gsm8k_test.jsonl is not in {DATA}")
WORDS = ["--models", "tiny-llama,tiny-llada", "--limit", "2", "--task", "gsm8k", "--fewshot", "0", "--data", str(DATA)]
WORDS += ["--ks", "1", "--set", "length=8", "--batch-size", "1", "--traced", "1"]


def files_of(folder: Path) -> dict[str, bytes]:
    """What was written, but for what tells of this machine and time, and the marks of shards."""
    left_out = ("run.json", "report.html")
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in left_out]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in paths
        if path.parent.name not in ("shards", "traces")
        and not path.name.startswith("lock")  # a trace's header has no order
    }


def units_of(folder: Path) -> set[str]:
    return {path.name for path in (folder / "units").glob("*.json")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "t"
    assert command(["table1", *WORDS, "-o", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("parts") / str(index) for index in (1, 2)]
    for index, folder in enumerate(folders, 1):
        assert command(["table1", *WORDS, "-o", str(folder), "--shard", f"{index}/2"]) == 0
    return folders


def test_shards_are_the_whole_run(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    assert not any((part / "results.json").exists() for part in parts)
    first, second = (units_of(part) for part in parts)
    assert first and second and not first & second
    assert command(["merge", *map(str, parts), "-o", str(tmp_path / "m")]) == 0
    assert files_of(tmp_path / "m") == files_of(whole)


def test_a_shard_goes_on_and_a_missing_one_is_named(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "1"
    shutil.copytree(parts[0], part)
    lost = next((part / "units").glob("answers__tiny-llada__none__*.json"))
    kept = lost.read_bytes()
    lost.unlink()
    assert command(["table1", *WORDS, "-o", str(part), "--shard", "1/2"]) == 0
    assert lost.read_bytes() == kept
    capsys.readouterr()
    assert command(["merge", str(part), "-o", str(tmp_path / "m")]) == 2
    assert "shard 2/2" in capsys.readouterr().err and not (tmp_path / "m").exists()
    other = ["table1", *WORDS, "--seed", "7", "-o", str(tmp_path / "2"), "--shard", "2/2"]
    assert command(other) == 0
    assert command(["merge", str(part), str(tmp_path / "2"), "-o", str(tmp_path / "m")]) == 2
    assert command([*other, "--sequential", "5"]) == 2


def test_a_table_that_was_killed_twice_goes_on_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    program = [sys.executable, "-m", "sinkscope", "table1", *WORDS, "-o", str(folder)]
    for count in (4, 12):
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while len(units_of(folder)) < count and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(units_of(folder)) >= count and not (folder / "results.json").exists()
    torn = next((folder / "units").glob("*.json"))
    torn.write_bytes(torn.read_bytes()[:-9])  # as a loss of power leaves it
    assert command(["table1", *WORDS, "-o", str(folder)]) == 0
    assert files_of(folder) == files_of(whole)


def test_the_table_is_a_run_like_any_other(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its page, its summary, its figures and its comparison come with being a study."""
    assert (whole / "report.html").stat().st_size > 10_000 and "tiny-llada" in (whole / "table1.md").read_text()
    for asked in (["report", str(whole), "--text"], ["compare", str(whole), str(whole)]):
        assert command(asked) == 0, asked
    shown = capsys.readouterr().out
    assert "tiny-llama" in shown
    cells = json.loads((whole / "results.json").read_text())["cells"]
    assert {"protocol", "published"} <= {name for cell in cells for name in cell} and cells[-1]["protocol"] == "harness"
