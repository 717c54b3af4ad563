"""`Ray`: which cluster, how many workers on it, and what each of them gets; the work itself is in `cluster`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from sinkscope.errors import StudyError
from sinkscope.fields import Allowed, check_fields, maybe, number, whole

if TYPE_CHECKING:
    from sinkscope.evals.batches import RunBatches

ADDRESS = Allowed(
    'the address of a cluster, such as "auto" or "ray://host:10001"',
    lambda value: value is None or (isinstance(value, str) and bool(value.strip())),
)


@dataclass(frozen=True)
class Ray:
    """Run units on a Ray cluster.

    address: None for this machine (or RAY_ADDRESS), "auto" for the cluster that this machine is part of, "host:port",
    or "ray://host:port" from outside. workers: processes that hold a model each; None for as many as fit. What a worker
    takes of its node: gpus_per_worker (a share of one, or several with the device auto) and cpus_per_worker.
    """

    address: Annotated[str | None, ADDRESS] = None
    workers: Annotated[int | None, maybe(whole(1))] = None
    gpus_per_worker: Annotated[float, number(0)] = 0
    cpus_per_worker: Annotated[float, number(0)] = 1
    patience: Annotated[float, number(0)] = 300.0  # seconds without any worker until the run is given up

    def __post_init__(self) -> None:
        check_fields(self, StudyError)
        if self.gpus_per_worker > 1 and self.gpus_per_worker != int(self.gpus_per_worker):
            raise StudyError(f"Expected a share of one GPU, or whole ones, got {self.gpus_per_worker}; round it.")
        if not self.cpus_per_worker and not self.gpus_per_worker:
            raise StudyError("Expected a worker to take a share of a CPU or a GPU, got 0 of both; give it one of them.")

    def fit(self, device: str | None) -> None:
        """Refuse GPUs that a study would not use, and a device that these workers would not have."""
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

    def answering(self, device: str | None, on_message: Callable[[str], object]) -> AbstractContextManager[RunBatches]:
        """Workers for the batches of a benchmark (`sinkscope.evals.batches`), for as long as the `with` lasts."""
        from sinkscope.study.engines.cluster import answering

        self.fit(device)
        return answering(self, on_message)
