"""Train a recipe; a run that was broken off resumes to the same weights: `python -m lab.train RECIPE --out FOLDER`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.trainer import train
from sinkscope.cli.screen import print_json, printable, say_error
from sinkscope.errors import SinkscopeError


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
