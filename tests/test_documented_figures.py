"""Figures that stand beside a run in README and docs are those of its committed results.json; so is every cell of the claims."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from documented import RESULTS, ROOT, change, numbers, read, rows_of, same, table
from sinkscope.report.overview import overview
from sinkscope.results import matrix
from sinkscope.results.rows import Claim
from sinkscope.statistics import change_interval

CLAIMS = runpy.run_path(str(ROOT / "docs" / "claims.py"))
PAIR, ONE, FAIR, STRONG = "pair/pair.json", "pair/one-by-one.json", "paper/fair.json", "paper/strong.json"
# Rows of the tables: what is masked in every head, beside k = 1.
ABOVE = {"rule": "head_share", "group": "all", "epsilon": 0.3}
ROWS: dict[str, dict[str, Any]] = {
    "strong sinks": {"name": "mask_sinks", "above": ABOVE},
    "the top key, whatever it is": {"name": "mask_sinks"},
    "the top structural key": {"name": "mask_sinks", "kinds": "structural"},
    "random keys up to the top key's mass": {"name": "mask_random", "match": "mass"},
}
TOP = "mask sinks K=1 clean by all rows"
STRONGEST = f"{TOP} above head_share,all,0.3"
SPECIFIC = ("above", "below", "kinds", "value_norm", "per", "persist")


def cell(run: str, model: str, task: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """The one row of a run with this condition, ranked on unmasked attention by all rows, and no further setting."""
    full = {"k": 1, "rank": "clean", "rows": "all", **wanted}
    found = [
        row for row in rows_of(run)
        if (row["model"], row["task"]) == (model, task)
        and all(row["condition"].get(key) == value for key, value in full.items())
        and all(row["condition"].get(key) is None for key in SPECIFIC if key not in full)
    ]  # fmt: skip
    assert len(found) == 1, (run, model, task, wanted, [row["label"] for row in found])
    return found[0]


def compare(written: str, found: dict[str, Any]) -> None:
    """Change, interval and, where it is written, the share of attention."""
    share = [100 * found["mass_share"]] if len(numbers(written)) == 4 else []
    same(written, [*change(found), *share])


@pytest.mark.parametrize(
    ("page", "columns"),
    [
        ("README.md", [(PAIR, "smol-llama", "arithmetic"), (ONE, "smol-dream", "arithmetic")]),
        ("docs/explanation/the-pair.md",
         [(PAIR, "smol-llama", "arithmetic"), (ONE, "smol-dream", "arithmetic"),
          (PAIR, "smol-llama", "programs"), (ONE, "smol-dream", "programs")]),
    ],
)  # fmt: skip
def test_the_tables_of_the_pair(page: str, columns: list[tuple[str, str, str]]) -> None:
    _, nothing, *rows = table(page, "masked in every head")
    for written, (run, model, task) in zip(nothing[1:], columns, strict=True):
        found = next(
            row for row in rows_of(run)
            if (row["model"], row["task"], row["condition"]["name"]) == (model, task, "none")
        )  # fmt: skip
        assert written == f"{100 * found['accuracy']:.0f} % right"
    assert len(rows) >= 3
    for name, *cells in rows:
        for written, (run, model, task) in zip(cells, columns, strict=True):
            compare(written, cell(run, model, task, ROWS[name]))


def test_the_table_of_what_agrees() -> None:
    head, *rows = table("docs/explanation/what-agrees.md", "masked in every head")
    assert len(rows) == 2 * len(ROWS)
    for name, *cells in rows:
        short, _, kind = name.partition(": ")
        wanted = next(words for long, words in ROWS.items() if long.startswith(short))
        for model, written in zip(head[1:], cells, strict=True):
            run = ONE if model == "smol-dream" else STRONG if short == "strong sinks" else FAIR
            compare(written, cell(run, model, {"sums": "arithmetic"}.get(kind, kind), wanted))


TWO_BY_TWO = ("pair/two-by-two-arm.json", "pair/two-by-two-dlm.json")


def recomputed(setting: str) -> bool:
    return any(word in setting for word in ("True", "whole"))


def test_each_model_with_a_cache_and_without() -> None:
    _, *rows = table("docs/explanation/the-pair.md", "masked")
    above = {"nothing": None, "the top key": None, "strong sinks": ABOVE}
    assert len(rows) == 2 * len(above)
    for name, *cells in rows:
        kind, _, masked = name.partition(": ")
        wanted = (
            "none" if masked == "nothing" else "mask_sinks",
            above[masked],
            "arithmetic" if kind == "sums" else kind,
        )
        for written, (run, again) in zip(cells, itertools.product(TWO_BY_TWO, (False, True)), strict=True):
            (found,) = (
                row for row in read(run)["cells"]
                if (row["condition"]["name"], row["condition"].get("above"), row["task"]) == wanted
                and recomputed(row["setting"]) == again
            )  # fmt: skip
            assert found["n"] == 200
            if masked == "nothing":
                same(written, [100 * found["accuracy"]])
            else:
                compare(written, found)


@pytest.mark.parametrize(
    ("run", "label", "written"),
    [(TWO_BY_TWO[0], TOP, "adds 18 points [10, 25] to what its top key costs"),
     (TWO_BY_TWO[0], STRONGEST, "12 [4, 19] to strong sinks"),
     (TWO_BY_TWO[1], STRONGEST, "adds 13 points [7, 20] to what smol-dream's strong sinks cost")],
)  # fmt: skip
def test_what_a_cache_adds(run: str, label: str, written: str) -> None:
    """The same sums with and without a cache, both masked."""
    answers = pl.read_parquet(RESULTS / run.replace(".json", ".parquet"))
    answers = answers.filter((pl.col("task") == "arithmetic") & (pl.col("condition") == label)).sort("problem")
    right: dict[bool, list[bool]] = {False: [], True: []}
    for setting, correct in answers.select("setting", "correct").iter_rows():
        right[recomputed(setting)].append(correct)
    pairs = list(zip(right[False], right[True], strict=True))
    lost, won = (sum(one == way for one in pairs) for way in ((True, False), (False, True)))
    low, high = change_interval(lost, won, len(pairs))
    assert len(pairs) == 200 and written in (ROOT / "docs/explanation/the-pair.md").read_text("utf-8")
    same(written, [100 * (won - lost) / 200, 100 * low, 100 * high])


def judged(path: Path) -> list[Claim]:
    return CLAIMS["read"](path).claims or []


RUNS = [path for path in CLAIMS["committed"]() if judged(path)]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_terminal_page_and_docs_show_the_same_cells(path: Path) -> None:
    claims = judged(path)
    cells = matrix.cells(claims)
    models = list(dict.fromkeys(row.model for row in claims))
    expected = {place: matrix.MARKS[row.verdict] for place, row in cells.items()}
    # Terminal: wide enough for all models; marks stand in columns of equal width.
    lines = list(matrix.lines(claims, width=matrix.NAME + matrix.WIDE * len(models)))
    printed = {}
    for name, short in matrix.SHORT.items():
        line = next((one for one in lines if one.startswith(f"{short:<{matrix.NAME}}")), "")
        for place, model in enumerate(models):
            start = matrix.NAME + place * matrix.WIDE
            if mark := line[start : start + matrix.WIDE].strip():
                printed[name, model] = mark
    assert printed == expected
    # Page: the data that its matrix is drawn from.
    data = overview(CLAIMS["read"](path))
    drawn: dict[tuple[str, str], str] = {}
    for row in data["claims"]:
        drawn.setdefault((row["name"], row["model"]), data["claimMarks"][row["verdict"]])
        if (row["name"], row["model"], row["condition"]) == (
            row["name"], row["model"], cells[row["name"], row["model"]].condition
        ):  # fmt: skip
            assert row["figure"] == matrix.figure(cells[row["name"], row["model"]])
    assert drawn == expected
    assert data["lede"].startswith(matrix.counted(claims))
    # Docs: the run's table in claims.md.
    text = CLAIMS["PAGE"].read_text(encoding="utf-8").split(f"## {path.relative_to(RESULTS)}\n", 1)[1].split("\n## ")[0]
    head, _, _, *rows = [
        [part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    names = {short: name for name, short in matrix.SHORT.items()}
    written = {(names[row[0]], model): one for row in rows for model, one in zip(head[1:], row[1:], strict=True) if one}
    assert written == {place: f"{expected[place]} {matrix.figure(row)}" for place, row in cells.items()}
    assert matrix.counted(claims) in text


def test_the_matrix_of_what_agrees_is_that_of_the_main_runs() -> None:
    text = CLAIMS["ANSWER"].read_text(encoding="utf-8")
    assert CLAIMS["summary"]() in text
    head, *rows = table("docs/explanation/what-agrees.md", "claim")
    names = {short: name for name, short in matrix.SHORT.items()}
    answers = CLAIMS["answers"]()
    for short, *marks in rows:
        for model, mark in zip(head[1:-1], marks[:-1], strict=True):
            row = answers.get((names[short], model))
            assert mark == ("" if row is None else matrix.MARKS[row.verdict])
