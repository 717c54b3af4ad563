"""Where units are run; an engine is handed units and gives back results, in any order; `perform` is always the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sinkscope.errors import StudyError
from sinkscope.registry import import_sources, imported_files, session_only
from sinkscope.study.schema import Study
from sinkscope.study.units import Job, ModelInfo
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
    """Run units on a Ray cluster.

    address: None for this machine (or RAY_ADDRESS), "auto" for the cluster that this machine is part of, "host:port",
    or "ray://host:port" from outside. workers: processes that hold a model each; None for as many as fit. What a worker
    takes of its node: gpus_per_worker (a share of one, or several with the device auto) and cpus_per_worker.
    """

    address: Text | None = None
    workers: Count | None = None
    gpus_per_worker: NonNegative = 0
    cpus_per_worker: NonNegative = 1
    patience: NonNegative = 300.0  # seconds without any worker until the run is given up

    def __post_init__(self) -> None:
        if (self.gpus_per_worker > 1 and self.gpus_per_worker % 1) or not (
            self.cpus_per_worker or self.gpus_per_worker
        ):
            came = f"{self.gpus_per_worker:g} GPUs and {self.cpus_per_worker:g} CPUs"
            raise StudyError(
                f"Expected workers that take a share of a CPU or GPU, or whole GPUs, got {came}; change it."
            )

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


def choose_engine(
    engine: str | Ray | Engine, workers: int | None = None, on_message: Callable[[str], object] | None = None
) -> Engine:
    """The engine of that name, or that `Ray` describes; anything that has `work` is an engine already."""
    if engine == "local":
        from sinkscope.study.local import Local

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
