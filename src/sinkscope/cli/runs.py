"""Finished runs: `results` is a table, `export` an entry of the atlas, `merge` joins shards, `compare` sets two side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option, echo

from sinkscope.cli.app import command
from sinkscope.cli.options import CsvOption, JsonFlag, ParquetOption, ReportFlag, writable
from sinkscope.cli.screen import print_json, print_result
from sinkscope.cli.study import print_run
from sinkscope.errors import StudyError, printable
from sinkscope.files import replace_file, write_file

if TYPE_CHECKING:
    import polars as pl

TableName = Literal[
    "cells",
    "claims",
    "answers",
    "pooled",
    "settings",
    "tokens",
    "kinds",
    "dynamics",
    "curves",
    "mechanism",
    "likelihood",
]


@command(name="results")
def print_rows(
    run: Annotated[Path, Argument(help="Folder of a finished run.", show_default=False)],
    table: Annotated[TableName, Option(help="A table of results.json, or answers: a row per problem.")] = "cells",
    csv: CsvOption = None,
    parquet: ParquetOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a table of a run as CSV, or write it to a file; the columns are the fields of results.json."""
    from sinkscope.study.run import Run

    found = Run.load(run).table(table)
    if csv is not None:
        write_file(csv, csv_of(found))
    if parquet is not None:
        with replace_file(parquet) as partial:
            found.write_parquet(partial)
    if as_json:
        print_json({"table": table, "rows": found.to_dicts()})
    elif csv is None and parquet is None:
        echo(printable(csv_of(found)), nl=False)


def csv_of(frame: pl.DataFrame) -> str:
    """A frame as CSV; lists, which CSV does not know, as JSON."""
    import polars as pl

    lists = [name for name, kind in frame.schema.items() if kind.is_nested()]
    texts = [pl.Series(name, [json.dumps(value) for value in frame[name].to_list()]) for name in lists]
    return frame.with_columns(texts).write_csv()


@command()
def export(
    run: Annotated[Path, Argument(help="Folder of a finished study or table1, or its results.json.", metavar="RUN")],
    out: Annotated[Path, Option("--out", "-o", help="File to write.", callback=writable)] = Path("entry.json"),
    name: Annotated[str | None, Option(help="Name of the entry; by default the study's.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write claims, table, controls, versions and checkpoint of a run as one file; no text of a benchmark is in it."""
    from sinkscope.results.atlas import entry_of, to_json

    entry = entry_of(run, name)
    path, failed = write_file(out, to_json(entry)), [one for one in entry["controls"] if not one["held"]]
    value = {"entry": str(path), "bytes": path.stat().st_size, "controls_held": not failed, "digest": entry["digest"]}
    shown = f"{path}: {len(entry['rows'])} rows, {len(entry['claims'])} claims, {path.stat().st_size / 1000:.0f} kB"
    told = [f"{one['model']}: {one['name']} failed in {one['failed']} of {one['rows']} rows" for one in failed]
    print_result(as_json, value, "\n".join([shown, *told]))


@command()
def merge(
    runs: Annotated[list[Path], Argument(help="Run folders that hold the shards.", metavar="RUN…")],
    out: Annotated[
        Path | None, Option("--out", "-o", help="Folder of the whole run. Default: the folder, if it is one.")
    ] = None,
    report: ReportFlag = True,
    as_json: JsonFlag = False,
) -> None:
    """Join the shards of a study or of table1 (--shard i/n), finish its tables and report; names a missing shard."""
    from sinkscope.study import shards
    from sinkscope.study.run import Run

    print_run(Run.load(shards.merge(runs, out)), report, as_json)


@command()
def compare(
    first: Annotated[Path, Argument(help="Folder of a finished run.")],
    second: Annotated[Path, Argument(help="Folder of another one, or of the same with --match-models.")],
    match_models: Annotated[str | None, Option(help="Models to compare, base=base-tuned,a=b.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare two runs of study or table1 cell by cell: the second against the first, on the problems that both have."""
    from sinkscope.results.compare import compare_runs, comparison_text

    found = compare_runs(first, second, None if match_models is None else _pairs(match_models))
    print_result(as_json, found, comparison_text(found))


def _pairs(text: str) -> dict[str, str]:
    words = [[part.strip() for part in word.split("=")] for word in text.split(",")]
    if any(len(word) != 2 or not all(word) for word in words) or len({word[0] for word in words}) != len(words):
        raise StudyError(f"Expected models to match as first=second with commas between, each once, got {text!r}.")
    return dict(words)
