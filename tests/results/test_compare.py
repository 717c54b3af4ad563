"""Two runs compared: paired where the problems are the same, and only there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from made_rows import tables
from sinkscope.cli.app import run
from sinkscope.errors import StudyError
from sinkscope.results.compare import compare_runs as compare
from sinkscope.results.compare import comparison_text as shown
from sinkscope.results.rows import Results, RunFacts
from sinkscope.study.schema import Study

LONG = "mask positions " + ",".join(map(str, range(60)))
CONDITIONS = ("none", f"{LONG},7,60", f"{LONG},8,60")


def made(folder: Path, problems: int, right: int, difficulty: int | None = None, **words: Any) -> Path:
    """The files of a finished run in which the first `right` problems were answered rightly."""
    tasks = [
        {"name": "arithmetic", "problems": problems, "difficulty": difficulty},
        {"name": "recall", "problems": problems},
    ]
    study = Study.from_dict({"name": "made", "models": ["m"], "tasks": tasks, "conditions": ["none"], **words})
    rows = [
        {"kind": "answers", "model": "m", "setting": "", "condition": condition, "task": task["name"],
         "problem": problem, "correct": problem < right}
        for condition in CONDITIONS for task in tasks for problem in range(problems)
    ]  # fmt: skip
    folder.mkdir()
    (folder / "study.yaml").write_text(study.to_yaml())
    about = RunFacts("made", study.seed, [], {}, "reference", "", 1, 1, 5.0)
    made = Results(**vars(tables()), verdicts=[], run=about, claims=[])
    (folder / "results.json").write_text(json.dumps(made.to_dict()))
    pl.DataFrame(rows).write_parquet(folder / "results.parquet")
    return folder


def test_the_accuracies_of_a_pair_are_of_the_common_problems(tmp_path: Path) -> None:
    found = compare(made(tmp_path / "a", 10, 2), made(tmp_path / "b", 4, 3))
    assert found["unpaired"] == [] and len(found["cells"]) == 6
    for row in found["cells"]:
        assert (row["first"], row["second"], row["difference"]) == (0.5, 0.75, 0.25)
        assert (row["n"], row["paired"], row["won"], row["lost"]) == ([10, 4], 4, 1, 0)
    line = shown(found).splitlines()[2].split()
    assert line == ["none", "4", "50.0", "75.0", "+25.0", "1.000"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"seed": 1}, "The runs differ in seed (0 and 1): other problems, so nothing is paired"),
        ({"split": "validation"}, "The runs differ in split (test and validation)"),
    ],
)
def test_other_problems_are_not_paired(tmp_path: Path, words: dict[str, Any], said: str) -> None:
    found = compare(made(tmp_path / "a", 4, 2), made(tmp_path / "b", 8, 3, **words))
    assert len(found["unpaired"]) == 1 and said in found["unpaired"][0]
    assert not any("p" in row or "paired" in row or "difference" in row for row in found["cells"])
    text = shown(found)
    assert "no p is given" in " ".join(text.split()) and max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[2].split() == ["none", "4/8", "50.0", "37.5"]


def test_another_difficulty_parts_one_task_only(tmp_path: Path) -> None:
    found = compare(made(tmp_path / "a", 4, 2), made(tmp_path / "b", 4, 3, difficulty=3))
    assert {row["task"] for row in found["cells"] if "p" in row} == {"recall"}
    assert "The runs differ in difficulty of arithmetic (mixed and 3)" in found["unpaired"][0]


def renamed(folder: Path, name: str) -> Path:
    table = pl.read_parquet(folder / "results.parquet").with_columns(model=pl.lit(name))
    table.write_parquet(folder / "results.parquet")
    return folder


def test_a_base_is_compared_with_its_fine_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, tuned = made(tmp_path / "a", 4, 2), renamed(made(tmp_path / "b", 4, 3), "m-tuned")
    with pytest.raises(StudyError, match="no cell in common"):
        compare(base, tuned)
    found = compare(base, tuned, {"m": "m-tuned"})
    assert {row["model"] for row in found["cells"]} == {"m → m-tuned"} and len(found["cells"]) == 6
    assert all(row["difference"] == 0.25 for row in found["cells"])
    with pytest.raises(StudyError, match=r"The second run has no model 'x' to match; it has m-tuned"):
        compare(base, tuned, {"m": "x"})
    assert run(["compare", str(base), str(tuned), "--match-models", "m=m-tuned", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == found["cells"]
    for wrong in ("m", "m=", "m=a,m=b", ""):
        assert run(["compare", str(base), str(tuned), "--match-models", wrong]) == 2


def test_long_names_are_written_whole(tmp_path: Path) -> None:
    text = shown(compare(made(tmp_path / "a", 4, 2), made(tmp_path / "b", 4, 3)))
    assert max(map(len, text.splitlines())) <= 80
    assert all("".join(text.split()).count("".join(name.split())) == 2 for name in CONDITIONS)  # of two tasks


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("results.parquet", b"PAR1 and no more"),
        ("results.parquet", b""),
        ("results.json", b"[]"),
        ("results.json", b'{"schema": 1}'),
        ("study.yaml", b"tasks: 3"),
        ("study.yaml", b"\xff"),
    ],
)
def test_a_damaged_run_is_told(tmp_path: Path, name: str, held: bytes) -> None:
    first, second = made(tmp_path / "a", 4, 2), made(tmp_path / "b", 4, 3)
    (second / name).write_bytes(held)
    with pytest.raises(StudyError) as caught:
        compare(first, second)
    assert str(second) in str(caught.value) and name in str(caught.value) and "\n" not in str(caught.value)


def test_a_table_without_its_columns_is_told(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a", 4, 2), made(tmp_path / "b", 4, 3)
    pl.DataFrame({"kind": ["answers"]}).write_parquet(second / "results.parquet")
    with pytest.raises(StudyError, match="damaged"):
        compare(first, second)
