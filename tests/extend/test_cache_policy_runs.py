"""A cache policy from another package's file, named in two lines of YAML: killed and run again, the results are the same."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import sinkscope as sk
from made_packages import with_path
from registries import restored

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "caches-and-pruning.md"
TEMPLATE = Path(__file__).parents[2] / "examples" / "sinkscope-template" / "src" / "sinkscope_template"
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


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def test_the_guide_works_when_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    policy, *others = blocks("python")
    assert policy == (TEMPLATE / "loud_values.py").read_text()
    with restored():
        exec(compile(policy, "loud_values.py", "exec"), {"__name__": "loud_values"})
        for lines in others:
            exec(compile(lines, str(PAGE), "exec"), {})
            assert capsys.readouterr().out.strip()
        for text in blocks("yaml"):
            values = yaml.safe_load(text)
            assert sk.Study.from_dict(values).name == values["name"]


def install(folder: Path) -> None:
    """The policy of the how-to page, as pip would leave it."""
    folder.mkdir()
    (folder / "loud_values.py").write_text(blocks("python")[0])
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
