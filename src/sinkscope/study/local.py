"""Units on this machine: in this process, or in a few of their own that are spoken to in lines of JSON.

Plain processes and JSON instead of multiprocessing: a user's script needs no `if __name__ == "__main__"`, and nothing is
pickled. A worker whose parent is gone reads the end of its input and goes too, in the middle of a unit if need be.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sinkscope.errors import StudyError, error_envelope
from sinkscope.study.engine import JobResults, ShouldStop, UnitQueue, known_models, message_of, read_message
from sinkscope.study.schema import Study
from sinkscope.study.units import Job, ModelInfo, perform, weigh


class Local:
    """workers: processes, one thread each; None for one per core, 1 for this very process."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers
        self.answers: queue.Queue[tuple[_Worker, str]] = queue.Queue()
        self.pool: list[_Worker] = []
        self.models: dict[str, ModelInfo] = {}  # by name, known once their facts are

    def work(self, study: Study, jobs: Sequence[Job], folder: Path, stop: ShouldStop) -> JobResults:
        on_cpu = study.device in (None, "cpu")
        count = self.workers or (cores() if on_cpu else 1)  # one process has the accelerator to itself
        if count > 1:
            yield from self._run_in_processes(study, jobs, folder, stop, count)
            return
        for job in jobs:
            if stop():
                return
            yield job, perform(study, job, folder)

    def _run_in_processes(
        self, study: Study, jobs: Sequence[Job], folder: Path, stop: ShouldStop, count: int
    ) -> JobResults:
        hello = {"study": message_of(study), "folder": str(folder)}
        while len(self.pool) < min(count, len(jobs)):  # kept from call to call: starting one takes seconds
            self.pool.append(_Worker(hello, self.answers))
        waiting = UnitQueue(jobs, lambda job: weigh(study, job.unit, self.models.get(job.model)))

        def feed(worker: _Worker) -> None:
            at = Counter(other.model for other in self.pool if other.job is not None and other.model is not None)
            worker.job = None if stop() else waiting.take(worker.model, at)
            if worker.job is not None:
                worker.model = worker.job.model
                worker.send(worker.job.to_dict())

        for worker in self.pool:
            feed(worker)
        while any(worker.job is not None for worker in self.pool):
            try:
                worker, line = self.answers.get(timeout=0.5)  # a wait without end would keep Ctrl-C out
            except queue.Empty:
                continue
            job, worker.job = worker.job, None
            result = _result(worker, job, line)
            feed(worker)
            assert job is not None
            self.models |= known_models(job, result)
            yield job, result

    def close(self) -> None:
        """End the workers; one that is still at work is not waited for."""
        for worker in self.pool:
            with suppress(BrokenPipeError):
                worker.input.close()
            if worker.job is not None:
                worker.process.kill()
        for worker in self.pool:
            worker.process.wait()
        self.pool = []


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """A process that answers one line with one line, and a thread that waits for its answers."""

    def __init__(self, hello: dict[str, Any], answers: queue.Queue[tuple[_Worker, str]]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        # A session of its own, so that Ctrl-C reaches the parent alone, which lets running units finish.
        self.process = subprocess.Popen(
            command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        self.job: Job | None = None
        self.model: str | None = None  # the one it has loaded
        self.send(hello)
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # it is dead; its listener says so
            self.input.write(json.dumps(message) + "\n")
            self.input.flush()

    def _listen(self, answers: queue.Queue[tuple[_Worker, str]]) -> None:
        for line in self.output:
            answers.put((self, line))
        answers.put((self, ""))


def _result(worker: _Worker, job: Job | None, line: str) -> dict[str, Any]:
    what = "starting" if job is None else f"running {job.id}"
    if not line:
        code = worker.process.wait()
        told = f"A worker ended (exit code {code}) while {what}"
        raise StudyError(f"{told}; rerun to resume, with --workers 1 if memory was short.")
    found: dict[str, Any] = json.loads(line)
    if "error" in found:
        raise StudyError(str(found["error"]))
    if "bug" in found:
        raise RuntimeError(f"{what} failed in a worker:\n{found['bug']}")
    result: dict[str, Any] = found["result"]
    return result


# ---- the other end: a process that reads a study and jobs as lines of JSON, and answers each with a line


def command() -> list[str]:
    """How a worker is started: with nothing importable from the working folder (-P), and the package that runs here."""
    root = str(Path(__file__).resolve().parents[2])
    start = "import sys; sys.path.append(sys.argv[1]); from sinkscope.study.local import main; main()"
    return [sys.executable, "-P", "-c", start, root]


def main() -> None:
    # Whatever prints by accident must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    hello = json.loads(lines.get())
    study, folder = json.dumps(hello["study"]), Path(hello["folder"])
    while True:
        print(json.dumps(answer(study, lines.get(), folder), allow_nan=False), file=answers, flush=True)


def _listen(lines: queue.SimpleQueue[str]) -> None:
    """Pass lines on; their end means that the parent is done or dead, and nobody wants the unit at work any more."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def answer(study: str, job: str, folder: Path) -> dict[str, Any]:
    """What `perform` gives for a job, with the fingerprint of the weights that were used; or why it gave nothing."""
    from sinkscope.study.units.worker import model_for

    def work() -> dict[str, Any]:
        plan, piece = _study(study), Job.from_dict(json.loads(job))
        result = perform(plan, piece, folder)
        digest = model_for(plan, piece.unit).fingerprint if "left_out" not in result else None
        return {"result": result, "fingerprint": digest}

    return error_envelope(work)


@functools.lru_cache(maxsize=2)
def _study(text: str) -> Study:
    return read_message(json.loads(text))
