"""The worker of the Ray engine: a process on some node that is told what to call, and sends back JSON and files.

Ray puts the driver's working folder on every worker's path, where a file `sinkscope.py` would be imported in place of
the package. So this class travels by value, imports nothing of the package on its own, and clears the path first.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

Answer = tuple[str, list[tuple[str, bytes]]]  # JSON with "result", "error" or "bug"; files by their path in the folder


class Actor:
    """Holds at most one loaded model, by way of the functions it calls."""

    def __init__(self, unsafe: list[str]) -> None:
        sys.path[:] = [path for path in sys.path if path not in ("", *unsafe)]
        os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

    def about(self) -> str:
        """Where this is, and which versions compute here."""
        util: Any = importlib.import_module("ray.util")
        found = {"node": util.get_node_ip_address(), "pid": os.getpid()}
        try:
            versions = importlib.import_module("sinkscope.study.store").list_versions()
        except Exception as error:
            return json.dumps({**found, "error": f"sinkscope cannot be imported ({type(error).__name__}: {error})"})
        return json.dumps({**found, "versions": versions})

    def run(self, function: str, context: str, payload: str) -> Answer:
        """Call `module:name` of the package with context, payload and a folder of its own; whatever it saves is sent."""
        module, _, name = function.partition(":")
        if not module.startswith("sinkscope."):
            return json.dumps({"bug": f"{function} is not a function of the package"}), []
        try:
            call = getattr(importlib.import_module(module), name)
            with tempfile.TemporaryDirectory(prefix="sinkscope-unit-") as made:
                folder = Path(made)
                answer = json.dumps(call(context, payload, folder), ensure_ascii=False, allow_nan=False)
                saved = sorted(path for path in folder.rglob("*") if path.is_file())
                return answer, [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in saved]
        except Exception:
            return json.dumps({"bug": traceback.format_exc()}), []
