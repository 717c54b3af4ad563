"""Options that say where the units of a study run: an engine, its workers, and a shard of the units."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.cli.screen import output, print_json, printable
from sinkscope.errors import StudyError

if TYPE_CHECKING:
    from sinkscope.study.engines import Engine
    from sinkscope.study.engines.ray import Ray

EngineOption = Annotated[str, typer.Option("--engine", help="local: processes here; ray: a Ray cluster.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="ray: auto, host:port or ray://host:port. Default: this machine.")
]
WorkersOption = Annotated[int | None, typer.Option("--workers", help="ray: processes with a model each.", min=1)]
GpusOption = Annotated[float | None, typer.Option("--gpus-per-worker", help="ray: GPUs of a worker.", min=0)]
CpusOption = Annotated[float | None, typer.Option("--cpus-per-worker", help="ray: CPUs of a worker.", min=0)]
ShardOption = Annotated[
    str | None, typer.Option("--shard", help="Only this part of the units, such as 3/16; join them with merge.")
]


def engine_from(
    engine: str, address: str | None, workers: int | None, gpus: float | None, cpus: float | None
) -> str | Ray | Engine:
    """The engine that the options describe, known to `engine_of` by its name; options of another engine are refused."""
    if engine == "ray":
        from sinkscope.study.engines.ray import Ray

        shares = {"gpus_per_worker": gpus, "cpus_per_worker": cpus}
        return Ray(address, workers, **{name: value for name, value in shares.items() if value is not None})
    given = {"--address": address, "--gpus-per-worker": gpus, "--cpus-per-worker": cpus}
    if used := [name for name, value in given.items() if value is not None]:
        raise StudyError(
            f"{', '.join(used)} would have no effect with the engine {engine}; add --engine ray, or leave it out."
        )
    if engine == "local":
        return engine
    from sinkscope.study.engines import engine_of

    return engine_of(engine, workers)


def workers_from(
    engine: str, address: str | None, workers: int | None, gpus: float | None, cpus: float | None
) -> Ray | None:
    """The same for a benchmark, which the engine local answers in this very process."""
    from sinkscope.study.engines.ray import Ray

    chosen = engine_from(engine, address, workers, gpus, cpus)
    if isinstance(chosen, Ray):
        return chosen
    if chosen != "local":
        raise StudyError(f"Expected the engine local or ray for a benchmark, got {engine!r}; choose one of them.")
    if workers is not None:
        raise StudyError("--workers would have no effect with the engine local; add --engine ray, or leave it out.")
    return None


def tell_shard(folder: Path, shard: str, as_json: bool) -> None:
    """What to do when a shard is finished."""
    if as_json:
        print_json({"folder": str(folder), "shard": shard, "results": None})
        return
    output().print(
        printable(f"Shard {shard} is in {folder}. When all are there: sinkscope merge {folder} … --out FOLDER"),
        markup=False,
        soft_wrap=True,
    )
