"""The work of a run: models become known, units planned, run and stored, and results assembled from them."""

from __future__ import annotations

import inspect
import io
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import StudyError
from sinkscope.interventions.conditions import Condition
from sinkscope.io.progress import LOADING
from sinkscope.study.analysis import analysed
from sinkscope.study.benchmark_table import write_table
from sinkscope.study.engines import Engine, Ray, engine_of
from sinkscope.study.problem_sets import ProblemSets
from sinkscope.study.results import Results
from sinkscope.study.rounds import plan_round
from sinkscope.study.schema import Study
from sinkscope.study.store import RUN_SCHEMA, Store, as_json, versions
from sinkscope.study.units import Job, ModelInfo, Unit, kind_of, units_of, weigh

logger = logging.getLogger(__name__)
OnMessage = Callable[[str], object]
OnProgress = Callable[..., object]  # units done, units in all, and, where it takes a third, the seconds left


@contextmanager
def begun(
    study: Study | str,
    out: Path | str | None = None,
    engine: str | Ray | Engine = "local",
    workers: int | None = None,
    on_message: OnMessage | None = None,
    on_progress: OnProgress | None = None,
    shard: str | None = None,
) -> Iterator[Work]:
    """A folder that is locked and holds this run, with its models known and its units planned; shard: only this part."""
    message, progress = on_message or logger.info, on_progress or (lambda done, total: None)
    study = Study.load(study) if isinstance(study, str) else study
    store = Store(Path("runs") / study.name if out is None else out)
    chosen = engine_of(engine, workers, message)
    with store.locked(shard), closing(chosen):
        sets = ProblemSets(study)
        study = sets.count_problems()
        models = [sets.add_protocols(info) for info in models_of(study, chosen, store.folder, message)]
        about = about_run(study, models)
        store.open(study.to_yaml(), about, alone=shard is None)
        for line in sets.describe(models):
            message(line)
        yield Work(study, store, sets, models, units_of(study, models), about, chosen, message, progress)


@dataclass(frozen=True)
class Work:
    """A run that was begun: what it consists of, and what does it."""

    study: Study
    store: Store
    sets: ProblemSets
    models: list[ModelInfo]
    units: list[Unit]
    about: dict[str, Any]  # what run.json holds
    engine: Engine
    on_message: OnMessage
    on_progress: OnProgress

    def run_all(self) -> list[Unit]:
        """Run the study; the units that its results are made of.

        The answers of benchmarks come first, and their table as soon as they are there; traces and all else after them.
        """
        if not self.study.has_table:
            self.run_units(self.units)
            return self.units
        answers = [unit for unit in self.units if unit.kind == "answers"]
        if self.study.sequential is None:
            self.run_units(answers)
        else:
            answers = self._run_rounds(answers)
        results, _ = analysed(self.study, self.models, answers, self.store.load, self.about)
        for line in write_table(self.study, self.store, self.models, answers, results, self.about).splitlines():
            self.on_message(line)
        others = [unit for unit in self.units if unit.kind != "answers"]
        self.run_units(others)
        return [*answers, *others]

    def _run_rounds(self, answers: Sequence[Unit]) -> list[Unit]:
        """Round after round, until every comparison is decided; the units that were asked."""
        counting, pending = plan_round(self.study, answers, self.store.find)
        while pending:
            self.run_units(pending)
            counting, pending = plan_round(self.study, answers, self.store.find)
        return counting

    def run_units(self, units: Sequence[Unit]) -> None:
        """Run what is not there yet; controls are checked as soon as both sides are there, not after hours."""
        left = []
        for unit in units:
            if (result := self.store.find(unit)) is None:
                left.append(unit)
            else:
                check(self.store, unit, result)
        done = len(units) - len(left)
        if done and left:
            self.on_message(f"{done} of {len(units)} units are there already")
        self.on_progress(done, len(units))
        known, sets = {info.asked: info for info in self.models}, self.sets
        weights = {unit.id: weigh(self.study, unit, known[unit.model]) for unit in left}
        ahead, spent, started = sum(weights.values()), 0.0, time.monotonic()
        timed = len(inspect.signature(self.on_progress).parameters) > 2
        try:
            with Stop().listening() as stop:
                jobs = [sets.make_job(unit) for unit in left]
                for job, found in self.engine.work(self.study, jobs, self.store.folder, stop):
                    unit = job.unit
                    with stop.storing():
                        result = sets.grade(unit, found)
                        check(self.store, unit, result)
                        self.store.save(unit, result)
                        done += 1
                    spent += weights[unit.id]
                    pace = (time.monotonic() - started) / max(spent, 1e-9)  # seconds for what was expected to take one
                    seconds = pace * (ahead - spent) if done < len(units) else 0.0
                    self.on_progress(done, len(units), *([seconds] if timed else []))
                if done < len(units):
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            self.on_message(f"stopped: {done} of {len(units)} units are stored; rerun the command to resume")
            raise


class Stop:
    """Whether an end was asked for: the first Ctrl-C lets the units at work finish, the second one ends at once.

    SIGTERM and SIGHUP end at once, too, where the program has handlers for them. Nothing ends while a unit is stored.
    """

    def __init__(self) -> None:
        self.asked = False
        self._storing = False
        self._late: list[int] = []
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.asked

    @contextmanager
    def storing(self) -> Iterator[None]:
        """A signal that comes now is obeyed when the unit is on the disk."""
        self._storing = True
        try:
            yield
        finally:
            self._storing = False
        for number in self._late:
            self._obey(number)

    def _received(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT and not self.asked:
            self.asked = True
        elif self._storing:
            self._late.append(number)
        else:
            self._obey(number)

    def _obey(self, number: int) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        self._before[number](number, None)

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if callable(signal.getsignal(number))]
        self._before = {number: signal.signal(number, self._received) for number in (signal.SIGINT, *ending)}
        try:
            yield self
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)


def models_of(study: Study, engine: Engine, folder: Path, on_message: OnMessage) -> list[ModelInfo]:
    """Every model loaded once, by the engine; extras last, so that the worker that has loaded one goes on with it."""
    shown = shown_names([*study.models, *study.likelihood_models])
    jobs = [Job(Unit("facts", name, Condition("none"), shown=short)) for name, short in shown.items()]
    found: dict[str, dict[str, Any]] = {}
    on_message(f"{LOADING}{', '.join(shown.values())}")
    for job, result in engine.work(study, jobs, folder, lambda: False):
        found[job.model] = result
        if waiting := [short for name, short in shown.items() if name not in found]:
            on_message(f"{LOADING}{', '.join(waiting)}")
    left_out = [result["left_out"] for result in found.values() if "left_out" in result]
    for why in left_out:
        on_message(f"left out: {why}")
    need_a_model(len(found) - len(left_out), left_out)
    return [ModelInfo(**found[name]) for name in shown if "left_out" not in found[name]]


def need_a_model(count: int, left_out: Sequence[str]) -> None:
    """Refuse a run of which every model was left out."""
    if not count:
        why = "; ".join(line.rstrip(".") for line in left_out)
        raise StudyError(f"Expected a model, and all were left out ({why}); install one, or name others.")


def shown_names(names: list[str]) -> dict[str, str]:
    """Folders and Hub ids by their last part, where that tells them apart."""
    last = {name: name.rstrip("/").split("/")[-1] or name for name in names}
    return {name: short if list(last.values()).count(short) == 1 else name for name, short in last.items()}


def about_run(study: Study, models: list[ModelInfo]) -> dict[str, Any]:
    """What run.json holds: everything that the results depend on, and the machine."""
    import torch

    from sinkscope.attention.attend import choose_backend

    device = study.device or "cpu"
    backend = choose_backend(torch.zeros(1, 1, 1, 16, device="cpu" if device == "auto" else device))
    return {
        "schema": RUN_SCHEMA,
        "study": study.name,
        "seed": study.seed,
        "models": [info.to_dict() for info in models],
        "versions": versions(),
        "backend": backend,
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "device": device,
            **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        },
    }


def check(store: Store, unit: Unit, result: dict[str, Any]) -> None:
    """The controls of the unit's kind; the other side of a pair may not be there yet."""
    kind = kind_of(unit)
    control = kind.control_of(unit)
    kind.check(unit, result, None if control is None else store.find(control))


def assemble(study: Study, store: Store, models: list[ModelInfo], units: list[Unit], about: dict[str, Any]) -> Results:
    """All tables from the stored units; written as results.parquet and results.json."""
    results, table = analysed(study, models, units, store.load, about)
    if study.has_table:
        write_table(study, store, models, units, results, about)
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    store.write("results.parquet", buffer.getvalue())
    store.write("results.json", as_json(results.to_dict()))
    return results
