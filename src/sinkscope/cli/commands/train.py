"""`sinkscope train`: says where training went."""

from __future__ import annotations

from typing import Annotated

import typer

from sinkscope.cli.groups import command
from sinkscope.errors import SinkscopeError


@command(context_settings={"ignore_unknown_options": True}, hidden=True)
def train(arguments: Annotated[list[str] | None, typer.Argument(metavar="…", help="Ignored.")] = None) -> None:
    """Training moved to `python -m lab.train RECIPE` in a checkout of the repository."""
    raise SinkscopeError(
        "Expected a command of the instrument, and training is none any more: in a checkout of the repository, "
        "run python -m lab.train RECIPE."
    )
