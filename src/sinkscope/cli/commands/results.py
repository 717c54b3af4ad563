"""`sinkscope results RUN`: a table of a run as CSV, Parquet or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope import io
from sinkscope.cli.groups import command
from sinkscope.cli.options import JsonFlag, writable_file
from sinkscope.cli.screen import print_json, printable
from sinkscope.errors import ReportError

if TYPE_CHECKING:
    import polars as pl

TABLES = ("cells", "claims", "answers")
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Write the table to this CSV file.")]


@command()
def results(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)],
    table: Annotated[str, typer.Option(help="cells, claims or answers (one row per problem).")] = "cells",
    csv: CsvOption = None,
    parquet: Annotated[Path | None, typer.Option(help="Write the table to this Parquet file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a table of a run as CSV, or write it to a file; the columns are the fields of results.json."""
    if table not in TABLES:
        raise ReportError(f"Expected a table out of {', '.join(TABLES)}, got {table!r}.")
    for path in (csv, parquet):
        if path is not None:
            writable_file(path, ReportError)
    from sinkscope.study.run import Run

    found: pl.DataFrame = getattr(Run.load(run), table)()
    if csv is not None:
        io.write(csv, csv_of(found))
    if parquet is not None:
        with io.whole(parquet) as partial:
            found.write_parquet(partial)
    if as_json:
        print_json({"table": table, "rows": found.to_dicts()})
    elif csv is None and parquet is None:
        typer.echo(printable(csv_of(found)), nl=False)


def csv_of(frame: pl.DataFrame) -> str:
    """A frame as CSV; lists, which CSV does not know, as JSON."""
    import polars as pl

    lists = [name for name, kind in frame.schema.items() if kind.is_nested()]
    texts = [pl.Series(name, [json.dumps(value) for value in frame[name].to_list()]) for name in lists]
    return frame.with_columns(texts).write_csv()
