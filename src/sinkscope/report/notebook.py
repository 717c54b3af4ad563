"""`show`: the explorer of traces, in a frame of a notebook's cell, or as a file that a script writes."""

from __future__ import annotations

import html
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from sinkscope.report.writing import render, write_traces
from sinkscope.tracing import Trace

HEIGHT = 900
logger = logging.getLogger(__name__)


class Explorer:
    """What a notebook displays, in a frame that can reach neither the notebook nor the network."""

    def __init__(self, traces: list[Trace], height: int = HEIGHT) -> None:
        self.text, self.height, self.count = render(traces), height, len(traces)

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" title="sinkscope explorer" '
            f'style="width:100%;height:{self.height}px;border:0" srcdoc="{html.escape(self.text)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"An explorer of {self.count} trace(s)."


def show(trace: Trace | list[Trace], height: int = HEIGHT, out: Path | str | None = None) -> Explorer | Path:
    """The explorer of one trace or several: displayed by a notebook; elsewhere written to a file, whose path is returned.

    out: the file to write, in a notebook too; without it a script writes a temporary one, and its path is logged too.
    """
    traces = trace if isinstance(trace, list) else [trace]
    if out is not None:
        return write_traces(traces, out)
    if _in_notebook():
        return Explorer(traces, height)
    written = write_traces(traces, Path(tempfile.mkdtemp(prefix="sinkscope-")) / "explorer.html")
    logger.info("the explorer is in %s", written)
    return written


def _in_notebook() -> bool:
    """Whether what a cell returns is displayed: under a Jupyter kernel, not in a script or a terminal."""
    shell: Any = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")
