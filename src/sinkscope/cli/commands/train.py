"""`sinkscope train RECIPE`: make a model of the tiny family, or an ablation of it, again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli.options import JsonFlag
from sinkscope.cli.screen import output, print_json, printable


def register(app: typer.Typer) -> None:
    @app.command()
    def train(
        recipe: Annotated[str, typer.Argument(help="A shipped recipe (tiny-llama, tiny-llada, …) or a YAML file.")],
        out: Annotated[
            Path | None, typer.Option("--out", "-o", help="Training folder. Default: runs/train/RECIPE.")
        ] = None,
        resume: Annotated[bool, typer.Option(help="Go on where a folder's last saved state is.")] = True,
        start: Annotated[Path | None, typer.Option(help="Checkpoint to start from, for recipes that need one.")] = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Train a recipe; a run that was broken off goes on to the same weights."""
        from sinkscope.training.trainer import train as run

        folder = out or Path("runs/train") / Path(recipe).stem
        made = run(recipe, folder, resume=resume, start=start, quiet=as_json)
        if as_json:
            print_json({"recipe": recipe, "folder": str(folder), "model": str(made)})
        else:
            output().print(printable(f"model in {made}\nnext: sinkscope check {made}"), markup=False, soft_wrap=True)
