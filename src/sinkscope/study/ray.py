"""Units of a study on a Ray cluster: workers keep their model; what failed is tried elsewhere.

No file system is shared: results and files come back through Ray, one at a time, and are written here alone. A worker
gets its next unit when its last result was fetched, so no more than one result per worker waits anywhere.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from sinkscope.errors import StudyError
from sinkscope.files import describe_error, write_file
from sinkscope.study.engine import JobResults, Ray, ShouldStop, UnitQueue, known_models, message_of
from sinkscope.study.schema import Study
from sinkscope.study.units import Job, ModelInfo, weigh

logger = logging.getLogger(__name__)
FUNCTION = "sinkscope.study.engine:answer"  # what workers call, with study and job as JSON and a folder
TRIES = 3  # of a unit
LOSSES = 3  # workers in a row that ended before they could be given anything
OnMessage = Callable[[str], object]


@dataclass(eq=False)
class Worker:
    """One actor, the unit that it is at, and the model that it has loaded."""

    handle: Any
    node: str = ""  # address of its node; empty while it starts
    pid: int | None = None
    unit: Job | None = None
    model: str | None = None


@dataclass(eq=False)
class PendingUnits:
    """What is left of one call of `work`, and what failed in it."""

    waiting: UnitQueue
    again: list[Job] = field(default_factory=list)
    nodes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # unit → where it failed
    broken: list[tuple[str, str]] = field(default_factory=list)  # a sentence, and all that was reported

    def __bool__(self) -> bool:
        return bool(len(self.waiting) or self.again)


class Cluster:
    """The engine that a `Ray` describes."""

    def __init__(self, choice: Ray, on_message: OnMessage | None = None) -> None:
        self.choice = choice
        self.on_message: OnMessage = on_message or logger.info
        self.workers: list[Worker] = []
        self.calls: dict[Any, Worker] = {}  # a unit, or the first word of a worker that starts
        self.lost_early = 0
        self.ours = False  # whether the connection was made here
        self.models: dict[str, ModelInfo] = {}
        self.prints: dict[str, str] = {}  # model → fingerprint of the weights that the study was planned with
        self.lacking: dict[str, str] = {}  # node that gets no more units → which model it cannot have, and why

    @cached_property
    def ray(self) -> Any:
        try:
            import ray
        except ImportError:
            raise StudyError("The engine ray needs the package ray; install it: pip install -e '.[ray]'") from None
        return ray

    def work(self, study: Study, jobs: Sequence[Job], folder: Path, stop: ShouldStop) -> JobResults:
        self.choice.fit(study.device)
        self._open(len(jobs))
        context = json.dumps(message_of(study))
        left = PendingUnits(UnitQueue(jobs, lambda job: weigh(study, job.unit, self.models.get(job.model))))
        seen = time.monotonic()  # when something was last at work
        while True:
            if not stop():
                self._feed(context, left)
            if any(worker.unit is not None for worker in self.workers):
                seen = time.monotonic()
            elif stop() or not left:
                break
            elif all(worker.node in self.lacking for worker in self.workers):
                self._give_up(list(self.lacking.values())[-1])
            elif time.monotonic() - seen > self.choice.patience:
                self._give_up(f"No worker was started within {self.choice.patience:.0f} seconds: look at `ray status`")
            for worker, call in self._ready():
                if worker.unit is None:
                    self._handshake(worker, call)
                    continue
                unit, worker.unit = worker.unit, None
                answer, files = self._fetch(worker, unit, call)
                if "result" not in answer:
                    self._failed(worker, unit, answer, left)
                    continue
                self.models |= known_models(unit, answer["result"])
                if not stop():
                    self._feed(context, left)  # it computes on while this result is stored
                _save(folder, files)
                yield unit, answer["result"]
        if left.broken:
            (sentence, why), *more = left.broken
            self._give_up(f"{sentence} (and {len(more)} more units)" if more else sentence, why)

    def _give_up(self, sentence: str, report: str | None = None) -> NoReturn:
        """End the run with this sentence; report: all that a worker said."""
        told = f"{sentence.rstrip('.')}; everything else is stored: rerun to resume."
        raise StudyError(told) from (None if report is None else RuntimeError(report))

    def close(self) -> None:
        """End the workers, and the connection if it was made here."""
        for worker in list(self.workers):
            self._end(worker)
        self.calls = {}
        if self.ours:
            self.ray.shutdown()

    # ---- workers

    def _open(self, wanted: int) -> None:
        """Connect, and start workers, no more than are wanted; those that are there are kept.

        At least one for every node, where so many may be: a model may be on some nodes only.
        """
        if not self.ray.is_initialized():
            self.ours = True
            _connect(self.ray, self.choice.address)
        shares = {"CPU": self.choice.cpus_per_worker, "GPU": self.choice.gpus_per_worker}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        room = sum(int(min(node.get(name, 0.0) / share for name, share in shares.items() if share)) for node in nodes)
        if room < 1:
            needed = f"{shares['CPU']:g} CPUs and {shares['GPU']:g} GPUs"
            raise StudyError(f"Expected a node with {needed} for a worker, got none; ask for less, or start one.")
        while len(self.workers) < min(self.choice.workers or room, max(wanted, len(nodes))):
            self._start()

    def _start(self) -> None:
        from sinkscope.study import ray_actor

        self.ray.cloudpickle.register_pickle_by_value(ray_actor)
        unsafe = [os.path.abspath(os.path.curdir), os.path.dirname(os.path.realpath(sys.argv[0]))]
        make = self.ray.remote(ray_actor.Actor).options(
            num_cpus=self.choice.cpus_per_worker, num_gpus=self.choice.gpus_per_worker, max_restarts=0,
            scheduling_strategy="SPREAD",
        )  # fmt: skip
        worker = Worker(make.remote(unsafe))
        self.workers.append(worker)
        self.calls[worker.handle.about.remote()] = worker

    def _end(self, worker: Worker) -> None:
        with suppress(Exception):  # it may be gone already
            self.ray.kill(worker.handle)
        self.workers.remove(worker)

    def _handshake(self, worker: Worker, call: Any) -> None:
        """The first word of a worker: where it is, and whether it computes with the same versions as the driver."""
        from sinkscope.study.store import list_versions

        try:
            found = json.loads(self.ray.get(call))
        except self.ray.exceptions.RayError as error:
            self.lost_early += 1
            if self.lost_early >= LOSSES:
                self._give_up(
                    f"{LOSSES} workers in a row ended while they started, the last with: {describe_error(error)}"
                )
            self._end(worker)
            self._start()
            return
        self.lost_early = 0
        there, here = found.get("versions", {}), list_versions()
        wrong = [
            f"{name} {there.get(name)}, not {version}" for name, version in here.items() if there.get(name) != version
        ]
        if wrong:
            raise StudyError(
                f"Expected sinkscope on {found['node']} as here, got {found.get('error', wrong[0])}; install it."
            )
        worker.node, worker.pid = found["node"], found["pid"]

    def _ready(self) -> list[tuple[Worker, Any]]:
        """A call that is over, its result not yet brought here; waits at most half a second, so that Ctrl-C gets in."""
        done, _ = self.ray.wait(list(self.calls), num_returns=1, timeout=0.5, fetch_local=False)
        return [(self.calls.pop(call), call) for call in done]

    def _fetch(self, worker: Worker, unit: Job, call: Any) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
        """Answer and files of a call that is over; a worker that was lost is reported as a bug."""
        try:
            text, files = self.ray.get(call)
        except self.ray.exceptions.RayError as error:  # the process, its node, or the result on it is gone
            return {"bug": f"the worker on node {worker.node} was lost ({describe_error(error)})"}, []
        answer: dict[str, Any] = json.loads(text)
        digest = answer.get("fingerprint")
        if digest is not None and self.prints.setdefault(unit.model, digest) != digest:
            why = "its weights are not those that the study was planned with; copy the same there."
            return {"lacking": True, "error": why}, []
        return answer, files

    # ---- units

    def _feed(self, context: str, left: PendingUnits) -> None:
        """A unit for every worker that has none."""
        for worker in self.workers:
            if worker.unit is None and worker.node and worker.node not in self.lacking:
                at = Counter(one.model for one in self.workers if one.unit and one.model)
                unit = self._again(worker, left) or left.waiting.take(worker.model, at)
                if unit is not None:
                    worker.unit, worker.model = unit, unit.model
                    self.calls[worker.handle.run.remote(FUNCTION, context, json.dumps(unit.to_dict()))] = worker

    def _again(self, worker: Worker, left: PendingUnits) -> Job | None:
        """A unit that failed; on a node that it did not fail on, as long as there is another node."""
        nodes = {one.node for one in self.workers if one.node} - set(self.lacking)
        for place, unit in enumerate(left.again):
            if worker.node in ((nodes - set(left.nodes[unit.id])) or nodes):
                return left.again.pop(place)
        return None

    def _failed(self, worker: Worker, unit: Job, answer: dict[str, Any], left: PendingUnits) -> None:
        if "lacking" in answer:  # says nothing about the unit: other nodes may have the model
            left.waiting.put_back(unit)
            if worker.node not in self.lacking:
                self.lacking[worker.node] = f"Node {worker.node} cannot load {unit.model}: {answer['error']}"
                self.on_message(self.lacking[worker.node])
            return
        nodes, why = left.nodes[unit.id], str(answer.get("error") or answer["bug"])
        nodes.append(worker.node)
        if len(nodes) < TRIES:
            left.again.append(unit)
        else:
            last = why.strip().splitlines()[-1].rstrip(".")
            left.broken.append((f"{unit.id} failed {TRIES} times ({', '.join(dict.fromkeys(nodes))}): {last}", why))
        if "bug" in answer:  # a fresh process: what failed may have left its own in a state that fails again
            self._end(worker)
            self._start()


def _save(folder: Path, files: list[tuple[str, bytes]]) -> None:
    for name, data in files:
        path = (folder / name).resolve()
        if folder.resolve() not in path.parents:
            raise StudyError(f"A worker sent a file that lies outside the run folder ({name!r}).")
        write_file(path, data)


def _connect(ray: Any, address: str | None) -> None:
    asked = address or os.environ.get("RAY_ADDRESS")
    words: dict[str, Any] = {} if asked else {"include_dashboard": False}
    try:
        # Without an address Ray would join whatever cluster was last started on this machine, with other packages perhaps.
        ray.init(address=asked or "local", log_to_driver=False, logging_level="error", **words)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        told = f"Expected a Ray cluster at {asked or 'this machine'}, got none ({describe_error(error)})"
        raise StudyError(f"{told}; start one with `ray start --head`, or leave --address out.") from None
