"""How a study ends before its end: asked to finish what is at work, or at once; never in the middle of storing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Whether an end was asked for: the first Ctrl-C lets the units at work finish, the second one ends at once.

    SIGTERM and SIGHUP end at once, too, where the program has handlers for them. Nothing ends while a unit is stored.
    """

    def __init__(self) -> None:
        self.asked = False
        self._storing = False
        self._late: list[int] = []
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.asked

    @contextmanager
    def storing(self) -> Iterator[None]:
        """A signal that comes now is obeyed when the unit is on the disk."""
        self._storing = True
        try:
            yield
        finally:
            self._storing = False
        for number in self._late:
            self._obey(number)

    def _received(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT and not self.asked:
            self.asked = True
        elif self._storing:
            self._late.append(number)
        else:
            self._obey(number)

    def _obey(self, number: int) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        self._before[number](number, None)

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if callable(signal.getsignal(number))]
        self._before = {number: signal.signal(number, self._received) for number in (signal.SIGINT, *ending)}
        try:
            yield self
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
