"""kill −9 at ten random moments, run again each time: the results are those of an undisturbed run, byte for byte."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sinkscope.study.schema import Study

SCRIPT = Path(__file__).with_name("killed.py")


def killed(study: Study, out: Path, delays: list[float]) -> list[dict[str, int]]:
    asked = {"study": study.to_dict(), "out": str(out), "delays": delays}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=600
    )
    found: list[dict[str, int]] = json.loads(done.stdout)
    return found


def test_killed_ten_times(family: dict[str, str], tmp_path: Path) -> None:
    study = Study.load("quick").changed(models=[family["llama"], family["llada"]], problems=4)
    started = time.monotonic()
    assert killed(study, tmp_path / "whole", [])[-1]["code"] == 0
    whole = time.monotonic() - started
    source = random.Random(7)
    ends = killed(study, tmp_path / "killed", [source.uniform(0.02, 0.25) * whole / 2 for _ in range(10)])
    codes = [end["code"] for end in ends]
    assert codes[-1] == 0 and -signal.SIGKILL in codes[:-1]
    counts = [end["units"] for end in ends]
    assert counts == sorted(counts)  # nothing finished is ever lost
    for name in ("results.parquet", "results.json", "study.yaml"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not list((tmp_path / "killed").rglob("*.part*"))


def test_the_command_killed_with_its_workers_at_work(family: dict[str, str], tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "sinkscope.cli",
        "study",
        "quick",
        "--problems",
        "3",
        "--no-report",
        "--workers",
        "2",
    ]
    words += ["--models", family["llama"], family["llada"]]
    words[1:3] = ["-c", "from sinkscope.cli import main; main()"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "run"
    process = subprocess.Popen(
        [*words, "-o", str(out)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
    )
    units = out / "units"
    while process.poll() is None and not (units.is_dir() and sum(1 for _ in units.glob("*.json")) >= 3):
        time.sleep(0.02)
    process.kill()
    process.wait()
    there = {path.name: path.stat().st_mtime_ns for path in units.glob("*.json")}
    assert there and not (out / "results.json").exists()
    done = subprocess.run(
        [*words, "-o", str(out), "--json"], capture_output=True, text=True, check=True, env=environment
    )
    results: dict[str, Any] = json.loads(done.stdout)
    assert results["schema"] == 2 and results["folder"] == str(out)
    assert f"{len(there)} of " in done.stderr and "units are there already" in done.stderr
    now = {path.name: path.stat().st_mtime_ns for path in units.glob("*.json")}
    assert all(now[name] == when for name, when in there.items())
