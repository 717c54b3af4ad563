"""Where units are run. An engine is handed units and gives back outcomes, in any order; `perform` is always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from sinkscope.errors import StudyError
from sinkscope.study.engines.ray import Ray
from sinkscope.study.schema import Study
from sinkscope.study.unit import Unit

ShouldStop = Callable[[], bool]  # asked before a unit is begun: should no more be?


class Engine(Protocol):
    """Runs units somewhere."""

    def work(
        self, study: Study, units: Sequence[Unit], folder: Path, stop: ShouldStop
    ) -> Iterator[tuple[Unit, dict[str, Any]]]:
        """Every unit with its result (`sinkscope.study.units.perform`), as they are finished.

        folder: where traces are saved. When `stop()` turns true no further unit is begun; those that run are finished.
        Called twice in a run: to ask what the models are, then for the work itself.
        """

    def close(self) -> None:
        """Called when the run is over, on error too."""


def engine_of(
    engine: str | Ray | Engine, workers: int | None = None, on_message: Callable[[str], object] | None = None
) -> Engine:
    """The engine of that name, or that `Ray` describes; anything that has `work` is an engine already."""
    if engine == "local":
        from sinkscope.study.engines.local import Local

        return Local(workers)
    if engine == "ray":
        engine = Ray(workers=workers)
    elif isinstance(engine, str):
        raise StudyError(
            "Expected the engine local or ray, or an object with `work` as sinkscope.study.engines.Engine has it, "
            f"got {engine!r}."
        )
    elif workers is not None:
        raise StudyError(
            f"Expected the number of workers in the engine that was given, got workers={workers} beside it."
        )
    if isinstance(engine, Ray):
        from sinkscope.study.engines.cluster import Cluster

        return Cluster(engine, on_message)
    return engine
