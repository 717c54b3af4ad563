"""Train a recipe; a run that was broken off resumes to the same weights: `python -m lab.train RECIPE --out FOLDER`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab import checkpoint
from lab.adapt import AdapterRun
from lab.adaptation import Adaptation, find_adaptation
from lab.block_recipe import BlockRecipe, find_block_recipe
from lab.blocks import BlockRun
from lab.loop import Run
from lab.progress import Progress
from lab.recipe import Recipe, load_recipe
from lab.tiny import TinyRun
from sinkscope.cli.screen import print_json, say_error
from sinkscope.errors import SinkscopeError, printable
from sinkscope.tasks.problem import TASKS

RUNS: dict[type, Callable[[Any, Path, Path | None], Run]] = {
    Recipe: TinyRun, Adaptation: AdapterRun, BlockRecipe: BlockRun,
}  # fmt: skip


def train(
    recipe: Recipe | Adaptation | BlockRecipe | str | Path,
    out: Path | str,
    resume: bool = True,
    start: Path | str | None = None,
    quiet: bool = False,
) -> Path:
    """Train a recipe into the folder `out` and give back the exported checkpoint, `out/model`.

    A folder with a saved state is resumed, to the same weights as an uninterrupted run on the same machine and number of
    threads. `start` names another checkpoint (or, for an adapter, another run) to start from than the recipe's.
    """
    if isinstance(recipe, str | Path):
        recipe = find_adaptation(recipe) or find_block_recipe(recipe) or load_recipe(recipe)
    for kind in recipe.data.kinds:
        TASKS[kind]  # an unknown kind is refused before anything is written
    out = Path(out)
    checkpoint.open_folder(out, recipe, resume)
    run = RUNS[type(recipe)](recipe, out, None if start is None else Path(start))
    run.to_the_end(Progress(recipe, quiet))
    return run.export(out / "model")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.train", description=__doc__)
    parser.add_argument("recipe", help="a shipped recipe (tiny-llama, tiny-llada, …) or a YAML file")
    parser.add_argument("-o", "--out", type=Path, help="training folder; default: runs/train/RECIPE")
    parser.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="resume from the folder's last saved state",
    )
    parser.add_argument("--start", type=Path, help="checkpoint to start from, for recipes that need one")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and no progress")
    given = parser.parse_args(arguments)
    folder = given.out or Path("runs/train") / Path(given.recipe).stem
    try:
        made = train(given.recipe, folder, resume=given.resume, start=given.start, quiet=given.json)
    except (SinkscopeError, OSError, MemoryError) as error:
        say_error(str(error))
        return 2
    except KeyboardInterrupt:
        say_error("Interrupted; the same command resumes.")
        return 130
    if given.json:
        print_json({"recipe": given.recipe, "folder": str(folder), "model": str(made)})
    else:
        print(printable(f"model in {made}\nnext: sinkscope check {made}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
