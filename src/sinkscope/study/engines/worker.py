"""A worker of the local engine: `python -m sinkscope.study.engines.worker` reads a study and units as lines and answers."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from sinkscope.errors import SinkscopeError
from sinkscope.study.schema import Study
from sinkscope.study.unit import Unit


def main() -> None:
    # Whatever prints by accident must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    hello = json.loads(sys.stdin.readline() or "null")
    if hello is None:
        return
    study, folder = Study.from_dict(hello["study"]), Path(hello["folder"])
    for line in sys.stdin:
        print(json.dumps(_answer(study, json.loads(line), folder), allow_nan=False), file=answers, flush=True)


def _answer(study: Study, unit: dict[str, Any], folder: Path) -> dict[str, Any]:
    from sinkscope.study.work import perform

    try:
        return {"result": perform(study, Unit.from_dict(unit), folder)}
    except SinkscopeError as error:
        return {"error": str(error)}
    except Exception:
        return {"bug": traceback.format_exc()}


if __name__ == "__main__":
    main()
