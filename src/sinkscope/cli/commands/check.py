"""`sinkscope check MODEL`: a table of checks, each ok or failed with the reason."""

from __future__ import annotations

import json
from typing import Annotated

from typer import Exit, Option

from sinkscope import io
from sinkscope.cli.app import command
from sinkscope.cli.commands.bench import machine
from sinkscope.cli.options import JsonFile, JsonFlag, LoadOptions, ModelArgument
from sinkscope.cli.screen import output, print_json, say_error, table_of, waiting


@command()
def check(
    model: ModelArgument,
    everything: Annotated[
        bool, Option("--all", help="Also every backend, every cache in half precision, several GPUs, memory.")
    ] = False,
    out: JsonFile = None,
    as_json: JsonFlag = False,
    *,
    options: LoadOptions,
) -> None:
    """Check that a model loads whole, attends as its family does, decodes, and obeys an intervention.

    With --quantization also how far logits and received attention drift from the plain weights.
    """
    from rich.text import Text

    from sinkscope.checkup import checkup

    with waiting(f"checking {model} …"):
        checks = list(checkup(model, everything=everything, **options.load_words()))
    failed = [one for one in checks if one.status == "failed"]
    found = {"model": model, "ok": not failed, "checks": [one.to_dict() for one in checks]}
    if out is not None:
        io.write(out, json.dumps({**found, "machine": machine()}, indent=1) + "\n")
    if as_json:
        print_json(found)
    else:
        colours = {"ok": "green", "failed": "red", "skipped": "dim"}
        rows = [(one.name, Text(one.status, colours[one.status]), one.detail) for one in checks]
        output().print(table_of(("check", "", "what was found"), rows))
    if failed:
        say_error(f"{model}: {len(failed)} of {len(checks)} checks failed; {failed[0].name}: {failed[0].detail}")
        raise Exit(1)
