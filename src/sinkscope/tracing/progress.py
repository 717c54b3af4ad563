"""Progress of a trace that takes its time: a bar of steps on a terminal, and nothing anywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.5  # seconds of work before a bar appears


def wanted(asked: bool | None, stream: TextIO) -> bool:
    """Whether to show a bar: where it was asked for, or by itself in an interactive session; only on a terminal.

    Commands and studies have a bar of their own, and are no interactive sessions.
    """
    interactive = hasattr(sys, "ps1") or "IPython" in sys.modules
    return (interactive if asked is None else asked) and stream.isatty()


class Bar:
    """Call `tick` after every step; the bar appears once the work has taken longer than a moment."""

    def __init__(self, total: int, what: str, stream: TextIO | None = None, asked: bool | None = None) -> None:
        self.stream = stream or sys.stderr
        self.shown = wanted(asked, self.stream)
        self.total, self.what, self.done, self.start = total, what, 0, time.monotonic()
        self.bar: Progress | None = None

    def tick(self) -> None:
        self.done += 1
        if not self.shown or (self.bar is None and time.monotonic() - self.start < PATIENCE):
            return
        if self.bar is None:
            from rich.console import Console
            from rich.markup import escape
            from rich.progress import Progress

            self.bar = Progress(console=Console(file=self.stream), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(escape(self.what), total=self.total)
        self.bar.update(self.task, completed=self.done, total=max(self.total, self.done))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
