"""Where units are run; an engine is handed units and gives back results, in any order; `perform` is always the same."""

from __future__ import annotations

import functools
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from sinkscope.errors import StudyError, error_envelope
from sinkscope.registry import import_sources, imported_files, session_only
from sinkscope.study.schema import Study
from sinkscope.study.units import Job, ModelInfo, perform, weigh
from sinkscope.validation import Count, NonNegative, Text, settings

PLUGINS = "plugins"  # in a message to a worker
ShouldStop = Callable[[], bool]  # asked before a unit is begun: should no more be?
JobResults = Iterator[tuple[Job, dict[str, Any]]]


class Engine(Protocol):
    """Runs units somewhere."""

    def work(self, study: Study, jobs: Sequence[Job], folder: Path, stop: ShouldStop) -> JobResults:
        """Every job with what `sinkscope.study.units.perform` found, as they are finished.

        folder: where traces are saved. When `stop()` turns true no further unit starts; those that run are finished.
        Called twice in a run: to ask what the models are, then for the work itself.
        """

    def close(self) -> None:
        """Called when the run is over, on error too."""


@settings(StudyError)
class Ray:
    """Settings of a Ray cluster that runs a study: `sk.run(study, engine=sk.Ray(...))`.

    Args:
        address: Address of the cluster: None for this machine (or RAY_ADDRESS), "auto" for the cluster that this
            machine belongs to, "host:port", or "ray://host:port" from outside the cluster.
        workers: Number of worker processes, each with a model of its own; None starts as many as fit.
        gpus_per_worker: GPUs that a worker reserves: a fraction of one, or several with `device: auto`.
        cpus_per_worker: CPU cores that a worker reserves.
        patience: Seconds without any worker after which the run is given up.

    Raises:
        StudyError: If a worker would reserve neither CPU nor GPU, or one and a half GPUs.
    """

    address: Text | None = None
    workers: Count | None = None
    gpus_per_worker: NonNegative = 0
    cpus_per_worker: NonNegative = 1
    patience: NonNegative = 300.0

    def __post_init__(self) -> None:
        if (self.gpus_per_worker > 1 and self.gpus_per_worker % 1) or not (
            self.cpus_per_worker or self.gpus_per_worker
        ):
            came = f"{self.gpus_per_worker:g} GPUs and {self.cpus_per_worker:g} CPUs"
            raise StudyError(
                f"Expected workers that take a share of a CPU or GPU, or whole GPUs, got {came}; change it."
            )

    def fit(self, device: str | None) -> None:
        """Check that the workers' GPUs and the device of a study fit together.

        Args:
            device: Device of the study.

        Raises:
            StudyError: If the study would not use the GPUs, or the workers would not have the device.
        """
        on_cpu = device is None or device.startswith("cpu")
        if self.gpus_per_worker and on_cpu:
            advice = "add --device cuda (auto for several GPUs), or leave the GPUs out"
        elif self.gpus_per_worker > 1 and device != "auto":
            advice = "add --device auto"
        elif not self.gpus_per_worker and device is not None and device.startswith("cuda"):
            advice = "add --gpus-per-worker 1"
        else:
            return
        came = f"{self.gpus_per_worker:g} GPUs per worker and the device {device or 'cpu'}"
        raise StudyError(f"Expected workers that use the GPUs they take, got {came}; {advice}.")


def choose_engine(
    engine: str | Ray | Engine, workers: int | None = None, on_message: Callable[[str], object] | None = None
) -> Engine:
    """The engine of that name, or that `Ray` describes; anything that has `work` is an engine already."""
    if engine == "local":
        return Local(workers)
    if engine == "ray":
        engine = Ray(workers=workers)
    elif isinstance(engine, str):
        raise StudyError(f"Expected the engine local or ray, or an object with `work` and `close`, got {engine!r}.")
    elif workers is not None:
        raise StudyError(f"Expected the workers in the engine that was given, got workers={workers} beside it.")
    if isinstance(engine, Ray):
        from sinkscope.study.ray import Cluster

        return Cluster(engine, on_message)
    return engine


# ---- what other processes know


def message_of(study: Study) -> dict[str, Any]:
    """A study as workers get it, with the files that registered what it names."""
    return {**study.to_dict(), PLUGINS: imported_files()}


def read_message(values: Mapping[str, Any]) -> Study:
    """The study of a message, its files imported."""
    own = dict(values)
    import_sources(own.pop(PLUGINS, []))
    return Study.from_dict(own)


def workers_that_know(
    study: Study, engine: str | Ray | Engine, workers: int | None, on_message: Callable[[str], object]
) -> int | None:
    """The workers of a run: this process alone where the study names something that others would not find."""
    if workers == 1 or not (engine in ("local", "ray") or isinstance(engine, Ray)):
        return workers
    names = session_only(_words(study.to_dict()))
    if not names:
        return workers
    what = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} known to this process only"
    advice = 'define it in a file of its own and pass plugins=["FILE.py"] (--import FILE.py on the command line)'
    if engine != "local" or workers is not None:
        raise StudyError(f"Expected names that every worker knows, and the {what}; {advice}.")
    on_message(f"the {what}: units run here, one after the other; for several workers {advice}")
    return 1


def _words(value: Any) -> set[str]:
    """Every text in plain values."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        return {word for part in value.items() for word in _words(list(part))}
    return {word for part in value for word in _words(part)} if isinstance(value, list | tuple) else set()


# ---- which unit a free worker takes: one of the model that it has loaded, the longest first


def known_models(unit: Job, result: Mapping[str, Any]) -> dict[str, ModelInfo]:
    """The model that the result of a unit of facts tells about; none of any other."""
    return {unit.model: ModelInfo(**result)} if unit.kind == "facts" and "left_out" not in result else {}


class UnitQueue:
    """Units that nobody has begun, by model, the longest last in each list; taking one of a loaded model costs no search."""

    def __init__(self, units: Iterable[Job], weigh: Callable[[Job], float]) -> None:
        """weigh: how long a unit takes, in any measure."""
        self.by_model: dict[str, list[Job]] = {}
        self.weights: dict[str, float] = {}
        for unit in reversed(list(units)):  # the sort is stable: what weighs the same is taken in the plan's order
            self.weights[unit.id] = weigh(unit)
            self.put_back(unit)
        for mine in self.by_model.values():
            mine.sort(key=lambda unit: self.weights[unit.id])

    def __len__(self) -> int:
        return sum(map(len, self.by_model.values()))

    def take(self, loaded: str | None, at: Counter[str]) -> Job | None:
        """The next unit of the loaded model; else of the model with most left for each worker that is at it.

        at: workers by the model that they have loaded.
        """
        left = {model: mine for model, mine in self.by_model.items() if mine}
        if not left:
            return None
        if loaded in left:
            return left[loaded].pop()
        shares = {model: sum(self.weights[one.id] for one in mine) / (at[model] + 1) for model, mine in left.items()}
        return left[max(shares, key=lambda model: shares[model])].pop()

    def put_back(self, unit: Job) -> None:
        """A unit whose worker was lost is the next of its model: others may have waited for it long enough."""
        self.by_model.setdefault(unit.model, []).append(unit)


# ---- units on this machine: in this process, or in a few of their own that are spoken to in lines of JSON


class Local:
    """workers: processes, one thread each; None for one per core, 1 for this very process.

    Plain processes and JSON instead of multiprocessing: a user's script needs no `if __name__ == "__main__"`, and nothing
    is pickled. A worker whose parent is gone reads the end of its input and goes too, in the middle of a unit if need be.
    """

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
    start = "import sys; sys.path.append(sys.argv[1]); from sinkscope.study.engine import main; main()"
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
