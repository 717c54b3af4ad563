"""`sinkscope merge RUN… --out FOLDER`: the shards of a study become one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli.options import JsonFlag
from sinkscope.cli.screen import output, print_json, printable


def register(app: typer.Typer) -> None:
    app.command()(merge)


def merge(
    runs: Annotated[list[Path], typer.Argument(help="Run folders that hold the shards.", metavar="RUN…")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the whole run. Default: the folder, if it is one.")
    ] = None,
    report: Annotated[bool, typer.Option(help="Write report.html at the end.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Join the shards of a study (study --shard i/n) and finish its tables and report; names a shard that is missing."""
    from sinkscope.cli.commands.study import written_report
    from sinkscope.study.shards import merge as merged

    done = merged(runs, out)
    page = written_report(done) if report else None
    if as_json:
        print_json({**done.results, "folder": str(done.folder), "report": str(page) if page else None})
        return
    output().print(printable(done.summary()), markup=False, soft_wrap=True)
    lines = f"Results: {done.folder / 'results.json'}\nReport:  {page or '(none)'}"
    output().print(printable(lines), markup=False, soft_wrap=True)
