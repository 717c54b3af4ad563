"""`show`: the explorer in a notebook, in a frame of its own that can reach neither the notebook nor the network."""

from __future__ import annotations

import html
from typing import Any

from sinkscope.report.writing import render
from sinkscope.tracing import Trace

HEIGHT = 900


class Explorer:
    """What a notebook displays; elsewhere it prints as a sentence."""

    def __init__(self, traces: list[Trace], height: int = HEIGHT) -> None:
        self.text, self.height, self.count = render(traces), height, len(traces)

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" title="sinkscope explorer" '
            f'style="width:100%;height:{self.height}px;border:0" srcdoc="{html.escape(self.text)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"An explorer of {self.count} trace(s); it shows in notebooks, or write it with sinkscope.report.write_traces."


def show(trace: Trace | list[Trace], height: int = HEIGHT) -> Any:
    """The explorer of one trace or several; the last expression of a notebook's cell displays it."""
    return Explorer(trace if isinstance(trace, list) else [trace], height)
