"""Public names, commands and options of two trees: `python -m lab.public_names OLD_TREE`, which holds src/sinkscope.

Prints what the old tree has and this one has not, and the other way round. Each tree is read by a Python of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
READ = """
import dataclasses, json
import typer
import sinkscope as sk
from sinkscope.cli.app import build

found = {f"sk.{name}" for name in sk.__all__}
for kind in (sk.Decode, sk.Model, sk.Study, sk.Trace):
    members = {name for name in dir(kind) if not name.startswith("_")}
    members |= {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    found |= {f"{kind.__name__}.{name}" for name in members}
for name, command in typer.main.get_command(build()).commands.items():
    found |= {f"sinkscope {name}"}
    found |= {f"sinkscope {name} {word}" for one in command.params for word in (*one.opts, *one.secondary_opts)}
print(json.dumps(sorted(found)))
"""


def names(tree: Path) -> set[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    given = parser.parse_args()
    before, after = names(given.old), names(HERE)
    print(f"{len(before)} names before, {len(after)} now")
    print("gone:", *sorted(before - after), sep="\n  ")
    print("new:", *sorted(after - before), sep="\n  ")


if __name__ == "__main__":
    main()
