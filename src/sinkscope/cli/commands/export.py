"""`sinkscope export RUN`: what a run found, in one small file for the atlas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli.groups import command
from sinkscope.cli.options import JsonFlag, writable_file
from sinkscope.cli.screen import print_result
from sinkscope.errors import StudyError


@command()
def export(
    run: Annotated[
        Path, typer.Argument(help="Folder of a finished study or table1, or its results.json.", metavar="RUN")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("entry.json"),
    name: Annotated[str | None, typer.Option(help="Name of the entry; by default the study's.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write claims, table, controls, versions and checkpoint of a run as one file; no text of a benchmark is in it."""
    from sinkscope import io
    from sinkscope.study.atlas import entry_of, to_json

    writable_file(out, StudyError)
    entry = entry_of(run, name)
    path, failed = io.write(out, to_json(entry)), [one for one in entry["controls"] if not one["held"]]
    value = {"entry": str(path), "bytes": path.stat().st_size, "controls_held": not failed, "digest": entry["digest"]}
    shown = f"{path}: {len(entry['rows'])} rows, {len(entry['claims'])} claims, {path.stat().st_size / 1000:.0f} kB"
    told = [f"{one['model']}: {one['name']} failed in {one['failed']} of {one['rows']} rows" for one in failed]
    print_result(as_json, value, "\n".join([shown, *told]))
