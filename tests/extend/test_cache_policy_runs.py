"""A cache policy from another package's file, named in two lines of YAML: killed and run again, the results are the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from made_packages import blocks, with_path

KILLED = Path(__file__).parents[1] / "study" / "killed.py"
STUDY = """
name: loud
models: [tiny-llada]
tasks: [{name: arithmetic, problems: 8}]
chunk: 1
decode: {length: 16, block: 8, steps: 16,
         cache: {name: loud_values, keep: 0.5}}
conditions: [none, {name: mask_sinks, k: 1}]
"""


def install(folder: Path) -> None:
    """The policy of the how-to page, as pip would leave it."""
    folder.mkdir()
    (folder / "loud_values.py").write_text(next(one for one in blocks("caches", "python") if "class LoudValues" in one))
    info = folder / "loud_values-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loud-values\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sinkscope.plugins]\nloud_values = loud_values\n")


def run(site: Path, out: Path, delays: list[float]) -> list[dict[str, int]]:
    asked = {"study": yaml.safe_load(STUDY), "out": str(out), "delays": delays}
    done = subprocess.run(
        [sys.executable, str(KILLED)], input=json.dumps(asked), capture_output=True, text=True, timeout=600, check=False,
        env={**with_path(site), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ends: list[dict[str, int]] = json.loads(done.stdout)
    return ends


def test_a_policy_of_another_file_survives_kill_9(tmp_path: Path) -> None:
    install(tmp_path / "site")
    assert run(tmp_path / "site", tmp_path / "whole", [])[-1]["code"] == 0
    ends = run(tmp_path / "site", tmp_path / "killed", [0.4, 0.8, 1.2])
    assert ends[-1]["code"] == 0 and -signal.SIGKILL in [end["code"] for end in ends]
    counts = [end["units"] for end in ends]
    assert counts == sorted(counts)
    for name in ("results.json", "results.parquet", "study.yaml"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    units = [json.loads(path.read_text())["result"] for path in (tmp_path / "whole" / "units").glob("*.json")]
    assert {unit["cache"]["policy"] for unit in units} == {"loud_values"}
