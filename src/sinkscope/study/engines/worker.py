"""A worker of the local engine: a process that reads a study and units as lines of JSON and answers each with a line."""

from __future__ import annotations

import functools
import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

from sinkscope.errors import error_envelope
from sinkscope.study.schema import Study
from sinkscope.study.unit import Unit


def command() -> list[str]:
    """How a worker is started: with nothing importable from the working folder (-P), and the package that runs here."""
    root = str(Path(__file__).resolve().parents[3])
    start = "import sys; sys.path.append(sys.argv[1]); from sinkscope.study.engines.worker import main; main()"
    return [sys.executable, "-P", "-c", start, root]


def main() -> None:
    # Whatever prints by accident must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    hello = json.loads(lines.get())
    study, folder = json.dumps(hello["study"]), Path(hello["folder"])
    while True:
        print(json.dumps(answer(study, lines.get(), folder), allow_nan=False), file=answers, flush=True)


def _listen(lines: queue.SimpleQueue[str]) -> None:
    """Pass lines on; their end means that the parent is done or dead, and nobody wants the unit at work any more."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def answer(study: str, unit: str, folder: Path) -> dict[str, Any]:
    """What `perform` gives for a unit, with the fingerprint of the weights that were used; or why it gave nothing."""
    from sinkscope.study.units import perform
    from sinkscope.study.units.given import model_for

    def work() -> dict[str, Any]:
        plan, piece = _study(study), Unit.from_dict(json.loads(unit))
        result = perform(plan, piece, folder)
        digest = model_for(plan, piece).fingerprint if "left_out" not in result else None
        return {"result": result, "fingerprint": digest}

    return error_envelope(work)


@functools.lru_cache(maxsize=2)
def _study(text: str) -> Study:
    return Study.from_dict(json.loads(text))
