"""Progress of a run: a bar with the time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from sinkscope.io.reading import plain

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 15.0  # seconds between lines of a log
LOADING = "loading "  # how a message begins that says what is waited for


class Log:
    """Lines such as "37 of 400 units, 0:52 gone, about 8:20 left"."""

    def __init__(self, stream: TextIO, what: str = "units") -> None:
        self.stream, self.what = stream, what
        self.clock = Clock()
        self.last = time.monotonic()

    def say(self, line: str) -> None:
        print(plain(line), file=self.stream, flush=True)  # names of models and files stand in it

    def tick(self, done: int, total: int, left: float | None = None) -> None:
        self.clock.note(done)
        now = time.monotonic()
        if done == total or now - self.last >= EVERY:
            self.last = now
            self.say(
                f"{done} of {total} {self.what}, {clock(self.clock.gone)} gone{self.clock.left(done, total, left)}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Bar:
    """A bar of rich."""

    def __init__(self, console: Console, what: str = "units") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"), console=console, transient=True,
        )  # fmt: skip
        self.task = self.progress.add_task("loading models", total=None, left="")
        self.clock, self.what = Clock(), what

    def say(self, line: str) -> None:
        if line.startswith(LOADING):
            self.progress.update(self.task, description=plain(line))
        else:
            self.progress.console.print(plain(line), markup=False)

    def tick(self, done: int, total: int, left: float | None = None) -> None:
        self.clock.note(done)
        told = self.clock.left(done, total, left).strip(", ")
        self.progress.update(self.task, description=self.what, completed=done, total=total, left=told)

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

    def left(self, done: int, total: int, seconds: float | None = None) -> str:
        """seconds: left, where somebody knows better than that all units take as long."""
        fresh = done - (self.before or 0)
        if fresh <= 0 or done >= total:
            return ""
        return f", about {clock(self.gone / fresh * (total - done) if seconds is None else seconds)} left"


class Pace:
    """Time left by the measured speed of each model: of two models one may be a hundred times as large.

    Units are weighed by what they are expected to take, so that a model without results is not taken to be as slow as
    a larger one that was run first.
    The time between two results is put down to the model of the second one: with several workers each takes its share.
    """

    def __init__(self, left: Iterable[tuple[str, float]]) -> None:
        """left: model and weight of every unit that is still to be run."""
        self.left: dict[str, float] = {}
        self.waiting: dict[str, int] = {}
        for model, weight in left:
            self.left[model] = self.left.get(model, 0.0) + weight
            self.waiting[model] = self.waiting.get(model, 0) + 1
        self.spent: dict[str, float] = {}
        self.done: dict[str, float] = {}
        self.last = time.monotonic()

    def note(self, model: str, weight: float) -> None:
        now = time.monotonic()
        self.spent[model] = self.spent.get(model, 0.0) + now - self.last
        self.done[model] = self.done.get(model, 0.0) + weight
        self.waiting[model] -= 1
        self.left[model] = self.left[model] - weight if self.waiting[model] else 0.0  # sums of floats leave crumbs
        self.last = now

    @property
    def seconds(self) -> float | None:
        """None before the first result; a model that has none yet takes what it was expected to, at the common pace."""
        done = sum(self.done.values())
        if not done:
            return None
        usual = sum(self.spent.values()) / done
        rates = {name: self.spent[name] / weight for name, weight in self.done.items() if weight}
        return sum(weight * rates.get(name, usual) for name, weight in self.left.items())


def clock(seconds: float) -> str:
    """3:07, or 1:03:07."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
