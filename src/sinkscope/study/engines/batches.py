"""Batches of benchmark requests on a Ray cluster: the workers, the queue and the retries are those of studies."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sinkscope.evals.batches import Batch, Job, Outcome
from sinkscope.study.engines.cluster import Cluster, OnMessage
from sinkscope.study.engines.ray import Ray

FUNCTION = "sinkscope.evals.batches:answer"


@dataclass(frozen=True)
class BatchPiece:
    """A batch as the queue takes it."""

    batch: Batch
    model: str
    kind = "answers"

    @property
    def id(self) -> str:
        return f"{self.batch.kind}-{self.batch.id}"

    def to_dict(self) -> dict[str, Any]:
        return {"batch": self.batch.to_dict()}


def weigh_batch(job: SharedJob, piece: BatchPiece, info: object) -> float:
    """Rows of a batch and their forwards, or the samples of its likelihoods: what makes one longer than another."""
    batch = piece.batch
    forwards = 1 if batch.settings is None else batch.settings.most_steps * (2 if batch.settings.guidance else 1)
    return float(len(batch.prompts) * forwards * (batch.samples if batch.kind == "score" else 1))


@dataclass(frozen=True)
class SharedJob:
    """A job as the engine takes it."""

    job: Job

    @property
    def device(self) -> str | None:
        return self.job.device

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.job)


class Answering:
    """Workers that stay from one call to the next, with the model that they have loaded."""

    def __init__(self, choice: Ray, on_message: OnMessage) -> None:
        self.cluster = Cluster(choice, on_message, FUNCTION, weigh_batch)

    def run(self, job: Job, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Outcome]]:
        """Every batch with its outcome, as they are finished."""
        if not batches:
            return
        # Other weights than those that the requests were made for are told, and not used.
        self.cluster.prints[job.model] = job.fingerprint
        context = SharedJob(replace(job, threads=max(1, int(self.cluster.choice.cpus_per_worker))))
        pieces = [BatchPiece(batch, job.model) for batch in batches]
        with tempfile.TemporaryDirectory() as folder:
            for piece, result in self.cluster.work(context, pieces, Path(folder), lambda: False):
                yield piece.batch, json.loads(result["outcome"])

    def close(self) -> None:
        self.cluster.close()
