"""How well units are spread over workers, and what the driver costs: a simulation with measured times, and empty units.

python benchmarks/scheduling.py --measure      # time every unit of the study paper, into lab/results/scheduling-units.json
python benchmarks/scheduling.py                # simulate with those times, and run 20,000 empty units
python benchmarks/scheduling.py --write        # the same, into lab/results/scheduling.md
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from sinkscope.decoding.cost import Size
from sinkscope.study.engine import Engine, ShouldStop, UnitQueue
from sinkscope.study.schema import Study
from sinkscope.study.units import Job, Unit, weigh

RESULTS = Path(__file__).parent.parent / "lab" / "results"
TIMES = RESULTS / "scheduling-units.json"
WORKERS = (1, 2, 8, 64, 512)
EMPTY = 20_000
T = TypeVar("T")


class Timed:
    """An engine that runs units here and notes the CPU seconds of each."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.parameters: dict[str, int] = {}

    def work(
        self, study: Study, jobs: Sequence[Job], folder: Path, stop: ShouldStop
    ) -> Iterator[tuple[Job, dict[str, Any]]]:
        from sinkscope.study.units import perform

        for job in jobs:
            unit, started = job.unit, time.process_time()
            result = perform(study, job, folder)
            spent = time.process_time() - started
            if unit.kind == "facts" and "identity" in result:
                self.parameters[unit.model] = int(result["identity"]["parameters"])
            else:
                self.rows.append({"unit": unit.to_dict(), "seconds": round(spent, 4)})
            yield job, result

    def close(self) -> None:
        TIMES.write_text(json.dumps({"parameters": self.parameters, "units": self.rows}, indent=0) + "\n")


class Empty:
    """An engine that does nothing, here: what is left is the plan, the controls and the store."""

    def work(
        self, study: Study, units: Sequence[Unit], folder: Path, stop: ShouldStop
    ) -> Iterator[tuple[Unit, dict[str, Any]]]:
        for unit in units:
            yield unit, {"rows": []}

    def close(self) -> None:
        """Nothing was opened."""


def measure() -> None:
    from sinkscope.study.run import run

    with tempfile.TemporaryDirectory() as folder:
        run("paper", Path(folder) / "run", Timed())


def simulate(
    units: list[Unit], seconds: dict[str, float], weigh: Callable[[Unit], float], workers: int, load: float
) -> float:
    """Seconds until all is done, with the engines' own queue; a worker that takes up another model loads it first."""
    waiting = UnitQueue(units, weigh)
    free: list[tuple[float, int]] = [(0.0, number) for number in range(workers)]
    loaded: dict[int, str] = {}
    at: Counter[str] = Counter()
    end = 0.0
    while len(waiting):
        now, number = heapq.heappop(free)
        before = loaded.get(number)
        at[before or ""] -= 1
        unit = waiting.take(before, at)
        assert unit is not None
        at[unit.model] += 1
        loaded[number] = unit.model
        now += seconds[unit.id] + (load if before != unit.model else 0.0)
        end = max(end, now)
        heapq.heappush(free, (now, number))
    return end


def copies(units: list[Unit], seconds: dict[str, float], rounds: int) -> tuple[list[Unit], dict[str, float]]:
    """The study on so many times its problems: chunks are copies of the measured ones."""
    made: list[Unit] = []
    times: dict[str, float] = {}
    for round_ in range(rounds):
        for unit in units:
            one = replace(unit, chunk=unit.chunk + 1000 * round_)
            made.append(one)
            times[one.id] = seconds[unit.id]
    return made, times


def weights_of(units: list[Unit]) -> Callable[[Unit], float]:
    """What the queue takes a unit of the study paper to weigh: from config.json files alone."""
    import torch

    from sinkscope.models.load import load_config_only
    from sinkscope.study.units.worker import model_info

    study = Study.load("paper")
    known = {}
    for name in {unit.model for unit in units}:
        model = load_config_only(name, dtype=torch.float32)
        known[name] = model_info(study, model, name, {"name": name, **asdict(Size.of(model))})
    return lambda unit: weigh(study, unit, known[unit.model])


def simulation() -> list[str]:
    held = json.loads(TIMES.read_text())
    units = [Unit.from_dict(row["unit"]) for row in held["units"]]
    seconds = {unit.id: float(row["seconds"]) for unit, row in zip(units, held["units"], strict=True)}
    weights = weights_of(units)
    load = sum(seconds.values()) / len(seconds)  # seconds to load a model: as long as a unit
    lines = [
        "| workers | units | lower bound (s) | makespan (s) | ratio | ratio with loading |",
        "|---|---|---|---|---|---|",
    ]
    worst, dearest = 0.0, 0.0
    for workers in WORKERS:
        for rounds in sorted({-(-factor * workers // len(units)) for factor in (8, 32)}):
            many, times = copies(units, seconds, rounds)
            bound = max(sum(times.values()) / workers, *times.values())
            took, loading = (simulate(many, times, weights, workers, cost) for cost in (0.0, load))
            lines.append(
                f"| {workers} | {len(many)} | {bound:.1f} | {took:.1f} | {took / bound:.3f} | {loading / bound:.3f} |"
            )
            worst, dearest = max(worst, took / bound), max(dearest, loading / bound)
    told = f"at most {worst:.2f} times the bound (aim 1.15); with loading counted, {dearest:.2f}."
    return [*lines, "", f"With 8 units for each worker and more, the makespan is {told}"]


def empty(with_ray: bool = True) -> list[str]:
    """20,000 units that compute nothing: planned, scheduled, sent through Ray, checked and stored as any others are."""
    from sinkscope.study import ray_actor as actor
    from sinkscope.study.engine import Local, Ray
    from sinkscope.study.ray import Cluster
    from sinkscope.study.run import Work
    from sinkscope.study.run import load_facts as models_of
    from sinkscope.study.store import Store
    from sinkscope.study.units import units_of

    tasks = [{"name": "arithmetic", "problems": EMPTY}]
    study = Study.from_dict(
        {"name": "empty", "models": ["tiny-llada"], "tasks": tasks, "chunk": 1, "conditions": ["none"]}
    )
    nodes = _cluster() if with_ray else None
    if with_ray:
        actor.Actor = _idle(actor.Actor)  # type: ignore[misc]
    engine: Engine = Cluster(Ray(workers=2), print) if with_ray else Empty()
    lines = ["| 20,000 empty units | on the clock (s) | units per second | CPU time of the driver (s) | units per CPU second |",
             "|---|---|---|---|---|"]  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        store.units.mkdir()
        facts = models_of(study, Local(1), Path(folder), lambda line: None)
        units = _timed(lines, "planned", lambda: units_of(study, facts))
        assert len(units) == EMPTY
        for _ in engine.work(study, units[:2], Path(folder), lambda: False):
            pass  # the workers are started
        work = Work(study, store, facts, units, {}, engine, lambda line: None, lambda done, total: None)
        first = "through Ray, checked and stored" if with_ray else "checked and stored, without Ray"
        for what in (first, "found stored, when the run is resumed"):
            _timed(lines, what, lambda: work.through(units))
        assert sum(1 for _ in store.units.iterdir()) == EMPTY
    engine.close()
    if nodes is not None:
        import ray

        ray.shutdown()  # before the node that it is connected to
        nodes.shutdown()
    return lines


def _idle(worker: type[Any]) -> type[Any]:
    """A worker that starts and answers as any other, and computes nothing."""

    class Idle(worker):  # type: ignore[misc]
        def run(self, function: str, context: str, payload: str) -> tuple[str, list[tuple[str, bytes]]]:
            return json.dumps({"result": {"rows": []}}), []

    return Idle


def _cluster() -> Any:
    """One node of two CPUs on the loopback; Ray takes the machine's outer address for 127.0.0.1."""
    os.environ["RAY_raylet_start_wait_time_s"] = "180"  # noqa: SIM112 - as Ray spells it; a busy machine is slow
    import ray
    from ray.cluster_utils import Cluster as LocalCluster

    nodes: Any = LocalCluster()
    nodes.add_node(node_ip_address="127.0.0.2", num_cpus=2, object_store_memory=200 << 20, include_dashboard=False)
    ray.init(address=nodes.address, _node_ip_address="127.0.0.2", log_to_driver=False, logging_level="error")
    return nodes


def _timed(lines: list[str], what: str, work: Callable[[], T]) -> T:
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    lines.append(f"| {what} | {wall:.1f} | {EMPTY / wall:,.0f} | {cpu:.1f} | {EMPTY / cpu:,.0f} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--empty", choices=("here", "ray"), help="only the driver's cost: without Ray, or with it")
    asked = parser.parse_args()
    if asked.measure:
        measure()
        return
    if asked.empty:
        print("\n".join(empty(with_ray=asked.empty == "ray")))
        return
    text = [
        "# Scheduling", "", "`python benchmarks/scheduling.py --write`; times of units are CPU seconds of the study paper "
        f"on one core ({platform.machine()}), in scheduling-units.json.", "",
        "Simulated with the engines' own queue. The bound is the larger of all work divided by the workers and the "
        "longest unit. Where a study has fewer units than are wanted, its chunks are repeated, as more problems would. "
        "With loading: taking up another model costs as much as a mean unit, which the bound does not count.", "",
        *simulation(), "",
        "## What the driver costs", "",
        "The plan, the queue, Ray with two workers on the same machine, the controls and the store "
        "are those of any study. Only the work itself is empty. CPU time is all of the driver's process, Ray's threads in "
        f"it included; the load on the machine's {os.cpu_count()} cores was {os.getloadavg()[0]:.1f} when it began.", "",
        *empty(with_ray=False), "", *empty(), "",
        "The aim was 500 units per second. The driver does not wait for the disk when it stores a unit. A loss of power may leave "
        "a file empty or cut. That is seen when the run is resumed, and the unit is run again.",
    ]  # fmt: skip
    print("\n".join(text))
    if asked.write:
        (RESULTS / "scheduling.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
