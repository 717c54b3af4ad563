"""Workers on a Ray cluster: started as many as fit, greeted, replaced when they are lost, and ended."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sinkscope.errors import StudyError
from sinkscope.study.engines import WorkPiece
from sinkscope.study.engines.ray import Ray

STARTING = 60.0  # seconds after which a worker that has not spoken is not counted on: its node may be gone
LOSSES = 3  # workers in a row that ended before they could be given anything


@dataclass
class Worker:
    """One actor; its number is never given again, so that two tries on one number are one try."""

    number: int
    handle: Any
    node: str | None = None  # address of its node; None while it starts
    pid: int | None = None
    since: float = field(default_factory=time.monotonic)  # when it was asked for
    unit: WorkPiece | None = None
    model: str | None = None  # the one it has loaded


class Pool:
    """The workers that a `Ray` describes, and the calls that are under way on them."""

    def __init__(self, choice: Ray) -> None:
        self.choice = choice
        self.calls: dict[Any, Worker] = {}  # a unit, or the first word of a worker that starts
        self.workers: dict[int, Worker] = {}
        self.started = 0
        self.lost_early = 0
        self.ours = False  # whether the connection was made here

    @cached_property
    def ray(self) -> Any:
        try:
            import ray
        except ImportError:
            raise StudyError("The engine ray needs the package ray; install it: pip install -e '.[ray]'") from None
        return ray

    def open(self, wanted: int) -> None:
        """Connect, and start workers, no more than are wanted; those that are there are kept.

        At least one for every node, where so many may be: a model may be on some nodes only.
        """
        if not self.ray.is_initialized():
            self.ours = True
            _connect(self.ray, self.choice.address)
        room = _room(self.ray, self.choice)
        if room < 1:
            raise StudyError(
                f"Expected a node with {self.choice.cpus_per_worker:g} CPUs and {self.choice.gpus_per_worker:g} GPUs for "
                f"a worker, and the cluster has none ({_resources(self.ray)}); ask for less, or start such a node."
            )
        alive = sum(1 for node in self.ray.nodes() if node["Alive"])
        while len(self.workers) < min(self.choice.workers or room, max(wanted, alive)):
            self.start()

    def start(self) -> None:
        from sinkscope.study.engines import actor

        self.ray.cloudpickle.register_pickle_by_value(actor)
        make = self.ray.remote(actor.Actor)
        unsafe = [os.path.abspath(os.path.curdir), os.path.dirname(os.path.realpath(sys.argv[0]))]
        handle = make.options(
            num_cpus=self.choice.cpus_per_worker,
            num_gpus=self.choice.gpus_per_worker,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        ).remote(unsafe)
        worker = Worker(self.started, handle)
        self.started += 1
        self.workers[worker.number] = worker
        self.calls[handle.about.remote()] = worker

    def replace(self, worker: Worker) -> None:
        """A fresh process: what failed may have left its own in a state that fails again."""
        with suppress(Exception):  # it may be gone already
            self.ray.kill(worker.handle)
        self.workers.pop(worker.number, None)
        self.start()

    def greet(self, worker: Worker, call: Any) -> None:
        """The first word of a worker: where it is, and whether it computes with the same versions as the driver."""
        from sinkscope.study.store import versions

        try:
            found = json.loads(self.ray.get(call))
        except self.ray.exceptions.RayError as error:
            self.lost_early += 1
            if self.lost_early >= LOSSES:
                raise StudyError(
                    f"{LOSSES} workers in a row ended while they started, the last with: {first_line(error)}; what is "
                    "finished is stored: look at the nodes' logs, and rerun to resume."
                ) from None
            self.replace(worker)
            return
        if "error" in found:
            raise StudyError(
                f"Expected sinkscope on node {found['node']} ({found['host']}): {found['error']}; install it."
            )
        for name, here in versions().items():
            there = found["versions"].get(name)
            if there != here:
                raise StudyError(
                    f"Expected {name} {here} on every node, as here, got {there} on {found['node']} ({found['host']}); "
                    "results would not be the same: install the same versions."
                )
        self.lost_early = 0
        worker.node, worker.pid = found["node"], found["pid"]

    def counted_on(self) -> list[Worker]:
        """Workers that are there, and those that may still come."""
        now = time.monotonic()
        return [w for w in self.workers.values() if w.node is not None or now - w.since < STARTING]

    def ready(self) -> list[tuple[Worker, Any]]:
        """Calls that are over, results not yet brought here; waits at most half a second, so that Ctrl-C gets in."""
        calls = list(self.calls)
        done, _ = self.ray.wait(calls, num_returns=1, timeout=0.5, fetch_local=False)
        if done and len(calls) > 1:
            done, _ = self.ray.wait(calls, num_returns=len(calls), timeout=0, fetch_local=False)
        return [(self.calls.pop(call), call) for call in done]

    def fetch(self, worker: Worker, call: Any) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
        """Answer and files of a call that is over; a worker that was lost is told as a bug."""
        try:
            answer, files = self.ray.get(call)
        except self.ray.exceptions.RayError as error:  # the process, its node, or the result on it is gone
            return {"bug": f"the worker on node {worker.node} was lost ({first_line(error)})"}, []
        found: dict[str, Any] = json.loads(answer)
        return found, files

    def close(self) -> None:
        """End the workers, and the connection if it was made here."""
        if not self.workers and not self.ours:
            return
        for worker in self.workers.values():
            with suppress(Exception):  # whatever cannot be reached has ended, or ends with the connection
                self.ray.kill(worker.handle)
        self.workers, self.calls = {}, {}
        if self.ours:
            self.ray.shutdown()


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]


def _connect(ray: Any, address: str | None) -> None:
    words: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    asked = address or os.environ.get("RAY_ADDRESS")
    if asked is None:
        words["include_dashboard"] = False
    try:
        ray.init(address=address, **words)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        raise StudyError(
            f"Expected a Ray cluster at {asked or 'this machine'}, and there is none to be reached "
            f"({first_line(error)}); start one with `ray start --head`, or leave --address out."
        ) from None


def _room(ray: Any, choice: Ray) -> int:
    """How many workers the nodes that are alive can hold."""
    room = 0
    for node in ray.nodes():
        if node["Alive"]:
            has, wants = node["Resources"], (("CPU", choice.cpus_per_worker), ("GPU", choice.gpus_per_worker))
            room += int(min(has.get(name, 0.0) / share for name, share in wants if share))
    return room


def _resources(ray: Any) -> str:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes) or "no node"
