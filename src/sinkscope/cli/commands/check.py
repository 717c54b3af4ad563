"""`sinkscope check MODEL`: a table of checks, each ok or failed with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sinkscope import io
from sinkscope.cli.commands.bench import machine
from sinkscope.cli.groups import LoadOptions, command
from sinkscope.cli.options import JsonFlag, ModelArgument, writable_file
from sinkscope.cli.screen import output, print_json, say_error, table_of, waiting
from sinkscope.errors import TaskError

COLOURS = {"ok": "green", "failed": "red", "skipped": "dim"}


@command()
def check(
    model: ModelArgument,
    everything: Annotated[
        bool, typer.Option("--all", help="Also every backend, every cache in half precision, several GPUs, memory.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the results to this JSON file.")] = None,
    as_json: JsonFlag = False,
    *,
    options: LoadOptions,
) -> None:
    """Check that a model loads whole, attends as its family does, decodes, and obeys an intervention.

    With --quantization also how far logits and received attention drift from the plain weights.
    """
    from rich.text import Text

    from sinkscope.checkup import checkup

    writable_file(out, TaskError)
    with waiting(f"checking {model} …"):
        checks = list(checkup(model, everything=everything, **options.load_words()))
    failed = [one for one in checks if one.status == "failed"]
    found = {"model": model, "ok": not failed, "checks": [one.to_dict() for one in checks]}
    if out is not None:
        io.write(out, json.dumps({**found, "machine": machine()}, indent=1) + "\n")
    if as_json:
        print_json(found)
    else:
        rows = [(one.name, Text(one.status, COLOURS[one.status]), one.detail) for one in checks]
        output().print(table_of(("check", "", "what was found"), rows))
    if failed:
        say_error(f"{model}: {len(failed)} of {len(checks)} checks failed; {failed[0].name}: {failed[0].detail}")
        raise typer.Exit(1)
