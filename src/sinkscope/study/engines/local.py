"""Units on this machine: in this process, or in a few of their own that are spoken to in lines of JSON.

Plain processes and JSON instead of multiprocessing: a user's script needs no `if __name__ == "__main__"`, nothing is
pickled, and a worker whose parent is gone reads the end of its input and goes too.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sinkscope.errors import StudyError
from sinkscope.study.engines import Stop
from sinkscope.study.plan import Study
from sinkscope.study.units import Unit


@dataclass(frozen=True)
class Local:
    """workers: processes, one thread each; None for one a core, 1 for this very process."""

    workers: int | None = None

    def work(
        self, study: Study, units: Sequence[Unit], folder: Path, stop: Stop
    ) -> Iterator[tuple[Unit, dict[str, Any]]]:
        count = min(self.workers or cores(), len(units))
        if study.device not in (None, "cpu") and self.workers is None:
            count = 1  # one process has the accelerator to itself
        return _here(study, units, folder, stop) if count <= 1 else _apart(study, units, folder, stop, count)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _here(study: Study, units: Sequence[Unit], folder: Path, stop: Stop) -> Iterator[tuple[Unit, dict[str, Any]]]:
    from sinkscope.study.work import perform

    for unit in units:
        if stop():
            return
        yield unit, perform(study, unit, folder)


class _Worker:
    """A process that answers one line with one line, and a thread that waits for its answers."""

    def __init__(self, number: int, hello: dict[str, Any], answers: queue.Queue[tuple[int, str]]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        # A session of its own, so that Ctrl-C reaches the parent alone, which lets running units finish.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sinkscope.study.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, encoding="utf-8", env=environment, start_new_session=True,
        )  # fmt: skip
        self.number = number
        self.unit: Unit | None = None
        self.say(hello)
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    @property
    def input(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def say(self, message: dict[str, Any]) -> None:
        try:
            self.input.write(json.dumps(message) + "\n")
            self.input.flush()
        except BrokenPipeError:
            pass  # it is dead; its listener says so

    def begin(self, unit: Unit) -> None:
        self.unit = unit
        self.say(unit.to_dict())

    def _listen(self, answers: queue.Queue[tuple[int, str]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answers.put((self.number, line))
        answers.put((self.number, ""))


def _apart(
    study: Study, units: Sequence[Unit], folder: Path, stop: Stop, count: int
) -> Iterator[tuple[Unit, dict[str, Any]]]:
    answers: queue.Queue[tuple[int, str]] = queue.Queue()
    hello = {"study": study.to_dict(), "folder": str(folder)}
    workers = [_Worker(number, hello, answers) for number in range(count)]
    waiting = deque(units)
    try:
        for worker in workers:
            if waiting and not stop():
                worker.begin(waiting.popleft())
        while any(worker.unit is not None for worker in workers):
            try:
                number, line = answers.get(timeout=0.5)  # a wait without end would keep Ctrl-C out
            except queue.Empty:
                continue
            worker = workers[number]
            unit, worker.unit = worker.unit, None
            result = _answer(worker, unit, line)
            if waiting and not stop():
                worker.begin(waiting.popleft())
            assert unit is not None
            yield unit, result
    finally:
        for worker in workers:
            worker.input.close()
        for worker in workers:
            if worker.unit is not None:  # an error came between: what it does is no longer wanted
                worker.process.kill()
            worker.process.wait()


def _answer(worker: _Worker, unit: Unit | None, line: str) -> dict[str, Any]:
    what = "starting" if unit is None else f"running {unit.id}"
    if not line:
        code = worker.process.wait()
        raise StudyError(
            f"A worker ended (exit code {code}) while {what}; what is finished is stored: run again to go on, "
            "with --workers 1 if memory was short."
        )
    found: dict[str, Any] = json.loads(line)
    if "error" in found:
        raise StudyError(str(found["error"]))
    if "bug" in found:
        raise RuntimeError(f"{what} failed in a worker:\n{found['bug']}")
    result: dict[str, Any] = found["result"]
    return result
