"""`sinkscope merge RUN… --out FOLDER`: the shards of a study become one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli.commands.study import print_run
from sinkscope.cli.options import JsonFlag


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
    from sinkscope.study.shards import merge as merged

    print_run(merged(runs, out), report, as_json)
