"""Progress of a run: a bar with the time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 15.0  # seconds between lines of a log


class Log:
    """Lines such as "37 of 400 units, 0:52 gone, about 8:20 left"."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.clock = Clock()
        self.last = time.monotonic()

    def say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    def tick(self, done: int, total: int) -> None:
        self.clock.note(done)
        now = time.monotonic()
        if done == total or now - self.last >= EVERY:
            self.last = now
            self.say(f"{done} of {total} units, {clock(self.clock.gone)} gone{self.clock.left(done, total)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Bar:
    """A bar of rich."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"), console=console, transient=True,
        )  # fmt: skip
        self.task = self.progress.add_task("loading models", total=None, left="")
        self.clock = Clock()

    def say(self, line: str) -> None:
        self.progress.console.print(line, markup=False)

    def tick(self, done: int, total: int) -> None:
        self.clock.note(done)
        self.progress.update(
            self.task, description="units", completed=done, total=total, left=self.clock.left(done, total).strip(", ")
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()


class Clock:
    """Time gone since the first unit, and time left at the pace so far."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.before: int | None = None

    def note(self, done: int) -> None:
        if self.before is None:  # units that were there already cost no time
            self.before, self.started = done, time.monotonic()

    @property
    def gone(self) -> float:
        return time.monotonic() - self.started

    def left(self, done: int, total: int) -> str:
        fresh = done - (self.before or 0)
        return f", about {clock(self.gone / fresh * (total - done))} left" if fresh > 0 and done < total else ""


def clock(seconds: float) -> str:
    """3:07, or 1:03:07."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
