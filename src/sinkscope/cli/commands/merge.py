"""`sinkscope merge RUN… --out FOLDER`: the shards of a study or of table1 become one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli.commands.study import print_run
from sinkscope.cli.groups import command
from sinkscope.cli.options import JsonFlag
from sinkscope.cli.screen import print_result, progress
from sinkscope.errors import StudyError


@command()
def merge(
    runs: Annotated[list[Path], typer.Argument(help="Run folders that hold the shards.", metavar="RUN…")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the whole run. Default: the folder, if it is one.")
    ] = None,
    report: Annotated[bool, typer.Option(help="Write report.html at the end.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Join the shards of a study or of table1 (--shard i/n), finish its tables and report; names a shard that is missing."""
    from sinkscope.study.shards import has_table1_shards
    from sinkscope.study.shards import merge as merged

    if any(has_table1_shards(run) for run in runs):
        _table1(runs, out, as_json)
    else:
        print_run(merged(runs, out), report, as_json)


def _table1(runs: list[Path], out: Path | None, as_json: bool) -> None:
    """The answers are there: what is left is to score them, and to trace a few problems."""
    from sinkscope.io.progress import unit_progress
    from sinkscope.study.shards import merge_table1

    if out is None and len(runs) > 1:
        raise StudyError(f"Expected --out, the folder for the merged run of {len(runs)} folders, got none.")
    folder = runs[0] if out is None else out
    with unit_progress(progress(), "answers") as shown:
        found = merge_table1(runs, folder, on_message=shown.on_message, on_progress=shown.on_progress)
    print_result(as_json, found, (folder / "table1.md").read_text(encoding="utf-8"))
