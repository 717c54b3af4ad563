"""`sinkscope models`: what can be loaded here without a network; `sinkscope train` says where training went."""

from __future__ import annotations

from typing import Annotated

import typer

from sinkscope.cli.groups import command
from sinkscope.cli.options import JsonFlag
from sinkscope.cli.screen import output, print_json
from sinkscope.errors import SinkscopeError


@command()
def models(as_json: JsonFlag = False) -> None:
    """List the models that come with sinkscope, and the families that it can load."""
    from rich.table import Table

    from sinkscope.models import zoo
    from sinkscope.models.load import families as known

    rows = zoo.describe()
    families = [family.name for family in known() if family.tested != "refused"]
    if as_json:
        print_json({"models": rows, "families": families})
        return
    table = Table("name", "what", "here", box=None, pad_edge=False)
    for row in rows:
        table.add_row(str(row["name"]), str(row["what"]), "yes" if row["here"] else "no")
    console = output()
    console.print(table)
    console.print(f"\nAlso: a folder with config.json and safetensors, a GGUF file, or a Hub id.\n"
                  f"Families: {', '.join(families)}.")  # fmt: skip


@command(context_settings={"ignore_unknown_options": True}, hidden=True)
def train(arguments: Annotated[list[str] | None, typer.Argument(metavar="…", help="Ignored.")] = None) -> None:
    """Training moved to `python -m lab.train RECIPE` in a checkout of the repository."""
    raise SinkscopeError(
        "Expected a command of the instrument, and training is none any more: in a checkout of the repository, "
        "run python -m lab.train RECIPE."
    )
