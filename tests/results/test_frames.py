"""A run as tables: polars frames, CSV, Parquet, pandas; and runs of other versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

import sinkscope as sk
from sinkscope.cli.app import run as command
from sinkscope.errors import StudyError
from sinkscope.results.rows import Claim, to_frame

PAPER = Path(__file__).parents[2] / "results" / "paper" / "tiny"


@pytest.fixture(scope="module")
def paper() -> sk.Run:
    return sk.Run.load(PAPER)


def test_cells_are_the_cells_of_results_json(paper: sk.Run) -> None:
    rows = paper.results["cells"]
    frame = paper.cells()
    assert frame.height == len(rows)
    for name in ("model", "task", "label", "accuracy", "low", "high", "difference", "n", "mass_share"):
        assert frame[name].to_list() == [row[name] for row in rows], name
    assert frame["condition_k"].to_list() == [row["condition"]["k"] for row in rows]
    assert frame["controls_count_difference"].to_list() == [
        row["controls"]["count"]["difference"] if "count" in row["controls"] else None for row in rows
    ]
    assert frame["accuracy"].dtype == pl.Float64 and frame["condition_k"].dtype == pl.Int64


def test_claims_and_their_controls_are_columns(paper: sk.Run) -> None:
    frame = paper.claims()
    assert set(frame["verdict"].unique()) <= {"supports", "contradicts", "no test", "undecided"}
    assert {"estimate", "low", "high", "control_estimate", "control_dose"} <= set(frame.columns)
    assert "control" not in frame.columns


def test_answers_are_one_row_per_problem(paper: sk.Run) -> None:
    answers = paper.answers().filter(kind="answers")
    counted = answers.group_by("model", "task", "setting", "condition").agg(
        pl.len().alias("n"), pl.col("correct").sum()
    )
    cells = paper.cells().select("model", "task", "setting", condition="label", expected="n", right="correct")
    both = cells.join(counted, on=["model", "task", "setting", "condition"])
    assert (
        both.height == cells.height
        and (both["n"] == both["expected"]).all()
        and (both["right"] == both["correct"]).all()
    )


def test_a_run_says_what_it_is(paper: sk.Run) -> None:
    assert repr(paper).startswith("Run(paper: tiny-llama") and len(repr(paper)) < 200
    assert ".cells()" in paper._repr_html_()


def test_names_of_a_run_are_escaped(paper: sk.Run, tmp_path: Path) -> None:
    found = json.loads((PAPER / "results.json").read_text())
    found["run"]["models"][0]["name"] = "<script>"
    (tmp_path / "results.json").write_text(json.dumps(found))
    assert "<script>" not in sk.Run.load(tmp_path)._repr_html_()


def test_pandas_has_the_same_values(paper: sk.Run) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = paper.cells()
    assert frame.to_pandas()["accuracy"].tolist() == frame["accuracy"].to_list()


def test_no_rows_have_columns_nevertheless() -> None:
    assert {"name", "model", "verdict"} <= set(to_frame([], Claim).columns)


@pytest.mark.parametrize("table", ["cells", "claims", "answers"])
def test_the_command_writes_csv_and_parquet(table: str, paper: sk.Run, tmp_path: Path) -> None:
    csv, parquet = tmp_path / "a.csv", tmp_path / "new" / "a.parquet"
    assert command(["results", str(PAPER), "--table", table, "--csv", str(csv), "--parquet", str(parquet)]) == 0
    expected = getattr(paper, table)()
    assert pl.read_parquet(parquet).equals(expected)
    assert pl.read_csv(csv, infer_schema_length=None).shape == expected.shape


def test_the_command_prints_csv_or_json(paper: sk.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["results", str(PAPER), "--table", "claims"]) == 0
    printed = capsys.readouterr().out
    assert pl.read_csv(printed.encode(), infer_schema_length=None).height == paper.claims().height
    assert command(["results", str(PAPER), "--table", "claims", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == paper.claims().height
    assert command(["results", str(PAPER), "--table", "claim"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("cells", "claims", "answers")) and len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["results.json"])
def test_a_newer_run_says_why_it_does_not_open(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(PAPER, folder)
    path = folder / name
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "schema": 99}))
    with pytest.raises(StudyError, match=f"{name} must have schema .*99"):
        sk.Run.load(folder).summary()


def test_fields_that_came_later_do_not_keep_a_run_closed(paper: sk.Run, tmp_path: Path) -> None:
    found = json.loads((PAPER / "results.json").read_text())
    found["cells"][0]["of_tomorrow"] = 1
    (tmp_path / "results.json").write_text(json.dumps({**found, "tables_of_tomorrow": []}))
    assert sk.Run.load(tmp_path).cells().equals(paper.cells())
