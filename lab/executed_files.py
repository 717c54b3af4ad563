"""Which of our files a command runs through: those in which at least one function is called, in this process.

python -m lab.executed_files study quick --problems 1 --workers 1 --no-report --out FOLDER

One worker is this very process, so nothing is missed. What runs while modules are imported counts only if it is a function.
"""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any


def executed(arguments: list[str]) -> tuple[int, list[Path]]:
    """Exit code of the command, and the files, relative to the package."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a function, not a module or a class
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        import sinkscope
        from sinkscope.cli.app import run

        code = run(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    root = Path(sinkscope.__file__).parent
    return code, sorted(Path(name).relative_to(root) for name in seen if Path(name).is_relative_to(root))


def main() -> None:
    code, files = executed(sys.argv[1:])
    print("\n".join(map(str, files)), file=sys.stderr)
    print(f"{len(files)} files", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
