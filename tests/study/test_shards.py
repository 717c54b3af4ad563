"""Shards: together they are the whole run, byte for byte; foreign folders are refused and missing parts named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_conditions import make_condition
from sinkscope.cli.app import run as command
from sinkscope.decoding.settings import Decode
from sinkscope.errors import StudyError
from sinkscope.study.run import run
from sinkscope.study.schema import Study
from sinkscope.study.shards import Shard, merge, run_shard
from sinkscope.study.store import Store, digest
from sinkscope.study.units import ModelInfo, Unit

SAME = ("results.json", "results.parquet", "study.yaml")


@pytest.fixture(scope="module")
def plan(study: Study) -> Study:
    """Every kind of unit, and few of each."""
    small = study.to_dict()
    small["conditions"] = ["none", "noop", {"name": "mask_sinks", "k": 1}, {"name": "mask_random", "k": 1}]
    return Study.from_dict(small)


@pytest.fixture(scope="module")
def parts(plan: Study, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("parts")
    return [run_shard(plan, Shard(index, 3), folder / str(index), workers=1) for index in (1, 2, 3)]


@pytest.fixture(scope="module")
def whole(plan: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(plan, tmp_path_factory.mktemp("whole") / "run", workers=1).folder


def same_bytes(first: Path, second: Path) -> None:
    for name in SAME:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    traces = [sorted(path.name for path in (folder / "traces").iterdir()) for folder in (first, second)]
    assert traces[0] == traces[1] and traces[0]


def test_shards_in_folders_of_their_own_are_the_whole_run(parts: list[Path], whole: Path, tmp_path: Path) -> None:
    counts = [sum(1 for _ in (part / "units").iterdir()) for part in parts]
    assert sum(counts) == sum(1 for _ in (whole / "units").iterdir()) and max(counts) - min(counts) <= 1
    assert not any((part / "results.json").exists() for part in parts)
    same_bytes(merge(parts, tmp_path / "merged"), whole)
    again = merge(reversed(parts), tmp_path / "merged")  # type: ignore[arg-type]
    same_bytes(again, whole)


def test_shards_in_one_folder_are_the_whole_run(plan: Study, parts: list[Path], whole: Path, tmp_path: Path) -> None:
    for part in parts[:2]:
        shutil.copytree(part, tmp_path, dirs_exist_ok=True)
    assert run_shard(plan, Shard(3, 3), tmp_path, workers=1) == tmp_path
    same_bytes(merge([tmp_path]), whole)


def test_a_missing_shard_is_named(parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"Not finished: shard 2/3; .*--shard 2/3"):
        merge([parts[0], parts[2]], tmp_path / "merged")
    with pytest.raises(StudyError, match=r"Not finished: shard 1/3, 2/3"):
        merge([parts[2]], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("what", ["versions", "models", "seed", "backend", "study.yaml"])
def test_a_foreign_folder_is_refused(what: str, parts: list[Path], tmp_path: Path) -> None:
    foreign = shutil.copytree(parts[1], tmp_path / "foreign")
    if what == "study.yaml":
        (foreign / what).write_text((foreign / what).read_text().replace("draws: 200", "draws: 201"))
    else:
        about = json.loads((foreign / "run.json").read_text())
        if what == "models":
            about["models"][0]["identity"]["fingerprint"] = "0" * 64
        else:
            about[what] = {"versions": {**about["versions"], "torch": "0.1"}, "seed": 9, "backend": "other"}[what]
        (foreign / "run.json").write_text(json.dumps(about))
    with pytest.raises(StudyError, match=rf"foreign is of another .* {what} differs"):
        merge([parts[0], foreign, parts[2]], tmp_path / "merged")


def test_a_unit_with_two_results_is_refused(parts: list[Path], tmp_path: Path) -> None:
    other = shutil.copytree(parts[0], tmp_path / "other")
    path = next((other / "units").glob("answers*.json"))
    held = json.loads(path.read_text())
    held["result"]["rows"][0]["text"] = "something else"
    held["sha256"] = digest(held["result"])
    path.write_text(json.dumps(held))
    with pytest.raises(StudyError, match="hold different results"):
        merge([*parts, other], tmp_path / "merged")


def test_controls_of_different_shards_are_compared(parts: list[Path], tmp_path: Path) -> None:
    """none and noop may be in different shards, which cannot compare them."""
    copies = [shutil.copytree(part, tmp_path / part.name) for part in parts]
    path = next(path for copy in copies for path in (copy / "units").glob("answers*noop*.json"))
    held = json.loads(path.read_text())
    held["result"]["rows"][0]["tokens"].reverse()
    held["sha256"] = digest(held["result"])
    path.write_text(json.dumps(held))
    with pytest.raises(StudyError, match="masking nothing changed"):
        merge(copies, tmp_path / "merged")


def test_a_shard_shares_its_folder_with_other_shards_only(plan: Study, tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.locked("1/3"):
        with store.locked("2/3"):
            pass
        with pytest.raises(StudyError, match="running shard 1/3"):
            run_shard(plan, Shard(1, 3), tmp_path)
        with pytest.raises(StudyError, match="Another process"):
            run(plan, tmp_path)
    with store.locked(), pytest.raises(StudyError, match="running the whole study"):
        run_shard(plan, Shard(1, 3), tmp_path)


@given(st.integers(1, 40), st.integers(1, 9))
def test_every_unit_is_in_one_shard(count: int, shards: int) -> None:
    settings = Decode.llada(length=8, steps=4).to_dict()
    units = [
        Unit("answers", "ab"[n % 2], make_condition("none"), last=n % 5, chunk=n, decode=settings, shown="m")
        for n in range(count)
    ]
    sizes = {"parameters": 1, "layers": 2, "heads": 2}
    models = [ModelInfo(name, name, False, "llada", sizes, {}) for name in "ab"]
    found = [Shard(index, shards).of(Study.load("quick"), units, models) for index in range(1, shards + 1)]
    assert sorted(unit.chunk for part in found for unit in part) == list(range(count))
    assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "-1/3", "1/0", "1/3/5", "²/3", "", "1/999999"])
def test_a_wrong_shard_is_one_sentence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["study", "quick", "--shard", text]) == 2
    assert "Expected a shard" in capsys.readouterr().err


def test_the_commands(parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "merged")
    assert command(["merge", *map(str, parts), "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == out
    assert command(["merge", str(parts[0]), str(tmp_path / "nothing"), "--out", out]) == 2
    assert "Expected a run folder" in capsys.readouterr().err
    assert command(["merge", *map(str, parts)]) == 2
    assert "--out" in capsys.readouterr().err
    assert command(["study", "quick", "--address", "auto"]) == 2
    assert "--address would have no effect with the engine local" in capsys.readouterr().err
