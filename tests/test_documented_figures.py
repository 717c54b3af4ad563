"""Figures that stand beside a run in README and docs are those of its committed results.json; so is every cell of the claims."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from documented import RESULTS, ROOT, change, numbers, rows_of, same, table
from sinkscope.report.overview import overview
from sinkscope.runs import matrix
from sinkscope.study.results import Claim

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


def test_the_cache_is_not_what_makes_it_fatal() -> None:
    _, *rows = table("docs/explanation/the-pair.md", "masked")
    runs = ("pair/two-by-two-arm-40.json", "pair/two-by-two-dlm-40.json")
    wanted = [{"name": "none"}, {"name": "mask_sinks"}, {"name": "mask_sinks", "above": ABOVE}]
    for (_, *cells), words in zip(rows, wanted, strict=True):
        right = [
            {
                any(word in row["setting"].lower() for word in ("true", "whole")): row["correct"]
                for row in rows_of(run)
                if row["task"] == "arithmetic" and row["condition"]["name"] == words["name"]
                and row["condition"].get("above") == words.get("above")
            }
            for run in runs
        ]  # fmt: skip
        assert [int(one) for one in cells] == [one[recomputed] for one in right for recomputed in (False, True)]


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
