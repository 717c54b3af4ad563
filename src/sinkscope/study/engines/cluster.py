"""Units of a study, or batches of a benchmark, on a Ray cluster: workers keep their model; what failed is tried elsewhere.

No file system is shared: results and files come back through Ray, one at a time, and are written here alone. A worker
gets its next unit when its last result was fetched, so no more than one result a worker waits anywhere.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from sinkscope import io
from sinkscope.errors import StudyError
from sinkscope.evals.batches import Batch, Job, Outcome, RunBatches
from sinkscope.study.cost import weigh
from sinkscope.study.engines import P, ShouldStop, Waiting, WorkPiece, known_models
from sinkscope.study.engines.pool import Pool, Worker
from sinkscope.study.engines.ray import Ray
from sinkscope.study.schema import Study
from sinkscope.study.units import ModelInfo

logger = logging.getLogger(__name__)
TRIES = 3  # of a unit, each on another worker
FUNCTION = "sinkscope.study.engines.local:answer"
OnMessage = Callable[[str], object]
Files = list[tuple[str, bytes]]
Weigh = Callable[[Any, Any, ModelInfo | None], float]


@dataclass
class Failed:
    """A unit that failed: on which workers and nodes, and why the last time."""

    unit: WorkPiece
    workers: set[int] = field(default_factory=set)
    nodes: list[str] = field(default_factory=list)
    why: str = ""

    @property
    def sentence(self) -> str:
        return self.why.strip().splitlines()[-1].rstrip(".")


@dataclass
class Left:
    """What is left of one call of `work`."""

    waiting: Waiting[WorkPiece]
    retried: list[Failed] = field(default_factory=list)
    broken: list[Failed] = field(default_factory=list)
    failed: dict[str, Failed] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(len(self.waiting) or self.retried)


class Cluster:
    """The engine that a `Ray` describes.

    function: what workers call, with study and unit as JSON and a folder. weigh: how long a unit takes, of a model if known.
    """

    def __init__(
        self, choice: Ray, on_message: OnMessage | None = None, function: str = FUNCTION, weigh: Weigh = weigh
    ) -> None:
        self.choice = choice
        self.on_message: OnMessage = on_message or logger.info
        self.function, self.weigh = function, weigh
        self.pool = Pool(choice)
        self.models: dict[str, ModelInfo] = {}
        self.prints: dict[str, str] = {}  # model → fingerprint of the weights that the study was planned with
        self.lacking: dict[tuple[str, str], str] = {}  # (node, model) → why the node cannot have the model

    def work(
        self, study: Study | Job, units: Sequence[P], folder: Path, stop: ShouldStop
    ) -> Iterator[tuple[P, dict[str, Any]]]:
        self.choice.fit(study.device)
        self.pool.open(len(units))
        waiting: Waiting[Any] = Waiting(units, lambda unit: self.weigh(study, unit, self.models.get(unit.model)))
        context, left = json.dumps(study.to_dict()), Left(waiting)
        seen = time.monotonic()  # when something was last at work
        while True:
            if not stop():
                self._feed(context, left)
            self._give_up(left)
            busy = any(worker.unit is not None for worker in self.pool.workers.values())
            if not busy and (stop() or not left):
                break
            seen = self._patience(seen, busy)
            for worker, call in self.pool.ready():
                if worker.unit is None:
                    self.pool.greet(worker, call)
                    continue
                unit, worker.unit = worker.unit, None
                answer, files = self.pool.fetch(worker, call)
                digest = answer.get("fingerprint")
                if digest is not None and self.prints.setdefault(unit.model, digest) != digest:
                    why = "its weights are not those that the study was planned with; copy the same there."
                    answer = {"lacking": True, "error": why}
                if "result" in answer:
                    self.models |= known_models(unit, answer["result"])
                    if not stop():
                        self._feed(context, left)  # it computes on while this result is stored
                    _save(folder, files)
                    yield cast("P", unit), answer["result"]
                else:
                    self._failed(worker, unit, answer, left)
        if left.broken:
            raise _told(left.broken) from RuntimeError(left.broken[0].why)

    def close(self) -> None:
        self.pool.close()

    def _patience(self, seen: float, busy: bool) -> float:
        now = time.monotonic()
        if not busy and now - seen > self.choice.patience:
            raise StudyError(
                f"No node of the cluster could start a worker within {self.choice.patience:.0f} seconds; what is "
                "finished is stored: look at `ray status`, and rerun to resume."
            )
        return now if busy else seen

    def _feed(self, context: str, left: Left) -> None:
        """A unit for every worker that has none."""
        for worker in self.pool.workers.values():
            if worker.unit is None and worker.node is not None:
                at = Counter(one.model for one in self.pool.workers.values() if one.unit and one.model)
                unit = self._again(worker, left) or left.waiting.take(worker.model, at, self._without(worker))
                if unit is not None:
                    worker.unit, worker.model = unit, unit.model
                    call = worker.handle.run.remote(self.function, context, json.dumps(unit.to_dict()))
                    self.pool.calls[call] = worker

    def _again(self, worker: Worker, left: Left) -> WorkPiece | None:
        """A unit that failed elsewhere; on a node that it did not fail on, as long as there is another node."""
        for place, failed in enumerate(left.retried):
            model = failed.unit.model
            able = [w for w in self.pool.workers.values() if w.node is not None and model not in self._without(w)]
            fresh = worker.node not in failed.nodes or {other.node for other in able} <= set(failed.nodes)
            if fresh and worker in able and worker.number not in failed.workers:
                return left.retried.pop(place).unit
        return None

    def _failed(self, worker: Worker, unit: WorkPiece, answer: dict[str, Any], left: Left) -> None:
        if "lacking" in answer:  # says nothing about the unit: other nodes may have the model
            told = f"Node {worker.node} cannot load {unit.model}: {answer['error']}"
            if self.lacking.setdefault((str(worker.node), unit.model), told) is told:
                self.on_message(told)
            worker.model = None
            left.waiting.put_back(unit)
            return
        failed = left.failed.setdefault(unit.id, Failed(unit))
        failed.workers.add(worker.number)
        failed.nodes.append(str(worker.node))
        failed.why = str(answer.get("error") or answer["bug"])
        (left.broken if len(failed.nodes) >= TRIES else left.retried).append(failed)
        if "bug" in answer:
            self.pool.replace(worker)

    def _give_up(self, left: Left) -> None:
        """Units that no worker can take any more: all have tried, or no node has the model."""
        workers = self.pool.counted_on()
        if not workers:
            return
        for failed in list(left.retried):
            model = failed.unit.model
            if all(worker.number in failed.workers or model in self._without(worker) for worker in workers):
                left.retried.remove(failed)
                left.broken.append(failed)
        if self.lacking and all(worker.node is not None for worker in workers):
            nodes = sorted({str(worker.node) for worker in workers})
            for model in [model for model, mine in left.waiting.by_model.items() if mine]:
                if all((node, model) in self.lacking for node in nodes):
                    why = self.lacking[nodes[0], model]
                    left.broken += [Failed(unit, nodes=nodes, why=why) for unit in left.waiting.drop(model)]

    def _without(self, worker: Worker) -> set[str]:
        return {model for node, model in self.lacking if node == worker.node}


def _save(folder: Path, files: Files) -> None:
    for name, data in files:
        path = (folder / name).resolve()
        if folder.resolve() not in path.parents:
            raise StudyError(f"A worker sent a file that lies outside the run folder ({name!r}); it was refused.")
        io.write(path, data)


def _told(broken: list[Failed]) -> StudyError:
    first = broken[0]
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    where = f"{len(first.workers)} workers" if len(first.workers) > 1 else "one worker"
    lost = f"{first.unit.id}{more} failed on {where} ({', '.join(dict.fromkeys(first.nodes))}): {first.sentence}"
    return StudyError(f"{first.sentence if not first.workers else lost}; everything else is stored: rerun to resume.")


# ---- batches of a benchmark: the workers, the queue and the retries are those of studies


@contextmanager
def answering(choice: Ray, on_message: OnMessage) -> Iterator[RunBatches]:
    """Workers that stay from one call to the next, with the model that they have loaded."""

    def weigh_batch(job: Job, batch: Batch, info: object) -> float:
        """Rows and their forwards, or the samples of its likelihoods: what makes one longer than another."""
        forwards = 1 if batch.settings is None else batch.settings.most_steps * (2 if batch.settings.guidance else 1)
        return float(len(batch.requests) * forwards * (batch.samples if batch.kind == "score" else 1))

    def run(job: Job, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Outcome]]:
        """Every batch with its outcome, as they are finished."""
        # Other weights than those that the requests were made for are told, and not used.
        cluster.prints[job.model] = job.fingerprint
        shared = replace(job, threads=max(1, int(choice.cpus_per_worker)))
        pieces = [replace(batch, model=job.model) for batch in batches]
        with tempfile.TemporaryDirectory() as folder:
            for batch, result in cluster.work(shared, pieces, Path(folder), lambda: False) if pieces else ():
                yield batch, json.loads(result["outcome"])

    with closing(Cluster(choice, on_message, "sinkscope.evals.batches:answer", weigh_batch)) as cluster:
        yield run
