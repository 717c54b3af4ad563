"""Batches of benchmark requests on a Ray cluster: the workers, the queue and the retries are those of studies."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sinkscope.evals.batches import Batch, Job, Outcome
from sinkscope.study.engines.cluster import Cluster, Said
from sinkscope.study.engines.ray import Ray

FUNCTION = "sinkscope.evals.batches:answer"


@dataclass(frozen=True)
class Piece:
    """A batch as the queue takes it."""

    batch: Batch
    model: str
    kind = "answers"

    @property
    def id(self) -> str:
        return f"{self.batch.kind}-{self.batch.id}"

    @property
    def decode(self) -> Mapping[str, Any]:
        return {} if self.batch.settings is None else self.batch.settings.to_dict()

    @property
    def first(self) -> int:
        return 0

    @property
    def last(self) -> int:
        """Rows of the batch, or the samples of its likelihoods: what makes one longer than another."""
        return len(self.batch.prompts) * (self.batch.samples if self.batch.kind == "score" else 1)

    def to_dict(self) -> dict[str, Any]:
        return {"batch": self.batch.to_dict()}


@dataclass(frozen=True)
class Context:
    """A job as the engine takes it."""

    job: Job

    @property
    def device(self) -> str | None:
        return self.job.device

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.job)


class Answering:
    """Workers that stay from one call to the next, with the model that they have loaded."""

    def __init__(self, choice: Ray, say: Said) -> None:
        self.cluster = Cluster(choice, say, FUNCTION)

    def run(self, job: Job, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Outcome]]:
        """Every batch with its outcome, as they are finished."""
        if not batches:
            return
        # Other weights than those that the requests were made for are told, and not used.
        self.cluster.prints[job.model] = job.fingerprint
        context = Context(replace(job, threads=max(1, int(self.cluster.choice.cpus_per_worker))))
        pieces = [Piece(batch, job.model) for batch in batches]
        with tempfile.TemporaryDirectory() as folder:
            for piece, result in self.cluster.work(context, pieces, Path(folder), lambda: False):
                yield piece.batch, json.loads(result["outcome"])

    def close(self) -> None:
        self.cluster.close()
