"""Progress of what takes its time: a bar with the time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from sinkscope.files import one_line

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 15.0  # seconds between lines of a log
PATIENCE = 1.5  # seconds of work before the bar of a trace appears
LOADING = "loading "  # how a message begins that says what is waited for


def clock(seconds: float) -> str:
    """3:07, or 1:03:07."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class UnitLog:
    """Lines such as "37 of 400 units, 0:52 gone, about 8:20 left"."""

    def __init__(self, stream: TextIO, what: str = "units") -> None:
        self.stream, self.what = stream, what
        self.started = self.last = time.monotonic()
        self.before: int | None = None  # units that were there already cost no time

    @property
    def callbacks(self) -> dict[str, Any]:
        """What a run takes."""
        return {"on_message": self.on_message, "on_progress": self.on_progress}

    def on_message(self, line: str) -> None:
        print(one_line(line), file=self.stream, flush=True)  # names of models and files stand in it

    def on_progress(self, done: int, total: int, left: float | None = None) -> None:
        """left: seconds, where somebody knows better than that all units take as long."""
        if self.before is None:
            self.before, self.started = done, time.monotonic()
        fresh, gone = done - self.before, time.monotonic() - self.started
        more = ""
        if fresh > 0 and done < total:
            more = f"about {clock(gone / fresh * (total - done) if left is None else left)} left"
        self.show(done, total, gone, more)

    def show(self, done: int, total: int, gone: float, left: str) -> None:
        now = time.monotonic()
        if done == total or now - self.last >= EVERY:
            self.last = now
            line = f"{done} of {total} {self.what}, {clock(gone)} gone"
            self.on_message(f"{line}, {left}" if left else line)


class UnitBar(UnitLog):
    """The same as a bar of rich."""

    def __init__(self, console: Console, what: str = "units") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__(sys.stderr, what)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"), console=console, transient=True,
        )  # fmt: skip
        self.task = self.progress.add_task("loading models", total=None, left="")

    def on_message(self, line: str) -> None:
        if line.startswith(LOADING):
            self.progress.update(self.task, description=one_line(line))
        else:
            self.progress.console.print(one_line(line), markup=False)

    def show(self, done: int, total: int, gone: float, left: str) -> None:
        self.progress.update(self.task, description=self.what, completed=done, total=total, left=left)


@contextmanager
def unit_progress(what: str = "units") -> Iterator[UnitLog]:
    """A bar on stderr where someone is watching, and a line now and then where nobody is."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield UnitLog(sys.stderr, what)
        return
    bar = UnitBar(console, what)
    with bar.progress:
        yield bar


def step_bar(total: int, what: str, stream: TextIO | None = None, asked: bool | None = None) -> Any:
    """A bar (tqdm) of the steps of a trace, say: call `update` after each.

    It appears once the work has taken longer than a moment.
    asked: whether to show it; None shows it in an interactive session alone. Commands and studies have a bar of their own,
    and are no interactive sessions. Only a terminal is shown a bar.
    """
    from tqdm import tqdm

    wanted = hasattr(sys, "ps1") or "IPython" in sys.modules if asked is None else asked
    hidden = None if wanted else True  # None: hidden where there is no terminal
    return tqdm(
        total=total, desc=one_line(what), file=stream or sys.stderr, delay=PATIENCE, leave=False, disable=hidden
    )
