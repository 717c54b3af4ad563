"""`sinkscope merge RUN… --out FOLDER`: the shards of a study become one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli.options import JsonFlag
from sinkscope.cli.screen import output, print_json, printable, progress
from sinkscope.errors import StudyError


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
    """Join the shards of a study or of table1 (--shard i/n), finish its tables and report; names a shard that is missing."""
    from sinkscope.cli.commands.study import written_report
    from sinkscope.study import table1_runs
    from sinkscope.study.shards import merge as merged

    if any(table1_runs.has_shards(run) for run in runs):
        return _table1(runs, out, as_json)

    done = merged(runs, out)
    page = written_report(done) if report else None
    if as_json:
        print_json({**done.results, "folder": str(done.folder), "report": str(page) if page else None})
        return
    output().print(printable(done.summary()), markup=False, soft_wrap=True)
    lines = f"Results: {done.folder / 'results.json'}\nReport:  {page or '(none)'}"
    output().print(printable(lines), markup=False, soft_wrap=True)


def _table1(runs: list[Path], out: Path | None, as_json: bool) -> None:
    """The answers are there: what is left is to score them, and to trace a few problems."""
    from sinkscope.io.progress import unit_progress
    from sinkscope.study.table1_runs import merge as merged

    if out is None and len(runs) > 1:
        raise StudyError(f"Expected --out, the folder for the merged run of {len(runs)} folders, got none.")
    folder = runs[0] if out is None else out
    with unit_progress(progress(), "answers") as shown:
        found = merged(runs, folder, on_message=shown.on_message, on_progress=shown.on_progress)
    if as_json:
        print_json(found)
    else:
        output().print(printable((folder / "table1.md").read_text(encoding="utf-8")), markup=False, soft_wrap=True)
