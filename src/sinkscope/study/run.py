"""`run`: a study becomes a folder of results; an existing run is resumed."""

from __future__ import annotations

import html
import inspect
import io
import logging
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from sinkscope.errors import StudyError
from sinkscope.interventions.conditions import Condition
from sinkscope.io.progress import LOADING
from sinkscope.models.base import Model
from sinkscope.study.analysis import analysed
from sinkscope.study.cost import weigh
from sinkscope.study.engines import Engine, engine_of
from sinkscope.study.engines.ray import Ray
from sinkscope.study.results import Cell, Claim, Results, read_results, to_frame
from sinkscope.study.schema import Study
from sinkscope.study.stop import Stop
from sinkscope.study.store import RUN_SCHEMA, Store, as_json, versions
from sinkscope.study.units import ModelInfo, Unit, kind_of, units_of
from sinkscope.study.units.given import in_memory

logger = logging.getLogger(__name__)
OnMessage = Callable[[str], object]
OnProgress = Callable[..., object]  # units done, units in all, and, where it takes a third, the seconds left


@dataclass(frozen=True)
class Run:
    """A finished run: `sk.run` returns it, `sk.Run.load(folder)` opens it; its tables are polars frames, with `.to_pandas()`."""

    folder: Path
    found: Results

    def __repr__(self) -> str:
        names = ", ".join(str(model.get("name")) for model in self.found.run.models)
        return f"Run({self.found.run.study}: {names}; {self.found.run.conditions} conditions; {self.folder})"

    def _repr_html_(self) -> str:
        """A notebook's card: what ran, how the claims came out, and where the tables are."""
        counts = Counter(row.verdict for row in self.found.claims or [])
        rows = {
            "about": self.found.run.about or "–",
            "claims": ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "–",
            "look at it": ".cells() · .claims() · .answers() · print(run.summary())",
        }
        lines = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items())
        return f"<p><b>{html.escape(repr(self))}</b></p><table>{lines}</table>"

    def cells(self) -> pl.DataFrame:
        """Accuracy per model, task, setting and condition, with intervals and controls."""
        return to_frame(self.found.cells, Cell)

    def claims(self) -> pl.DataFrame:
        """The paper's claims, one row per model and condition, with the verdict and what it rests on."""
        return to_frame(self.found.claims or [], Claim)

    def answers(self) -> pl.DataFrame:
        """Everything that was answered or scored, one row per problem."""
        path = self.folder / "results.parquet"
        try:
            found = pl.read_parquet(path)
            found.select("kind", "model", "setting", "condition", "task", "problem", "correct")  # it is of a run
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            raise StudyError(
                f"Expected the answers of a finished run in {path}, and it is missing or damaged; run the study again."
            ) from None
        return found

    @cached_property
    def results(self) -> dict[str, Any]:
        """The results as plain JSON values."""
        return self.found.to_dict()

    def typed(self) -> Results:
        """The results as rows with named fields."""
        return self.found

    def summary(self, full: bool = False) -> str:
        """What came out, as at most 42 lines of 80 columns; full: every table and every verdict with its numbers."""
        from sinkscope.study.summary import summary
        from sinkscope.study.tables import tables

        if full:
            return tables(self.found)
        seconds = (Store(self.folder).read("run.json") or {}).get("seconds")
        return summary(self.found, self.folder, seconds if isinstance(seconds, int | float) else None)

    def unexpected(self, study: Study) -> list[str]:
        """Where the verdicts are not those that the study expects, a line each."""
        found = {(row.model, row.name): row.value for row in self.found.verdicts}
        return [
            f"{model} {name}: expected {value}, came {found.get((model, name), 'no such verdict')}"
            for model, told in study.expected.items()
            for name, value in told.items()
            if not str(found.get((model, name), "")).startswith(value)
        ]

    @classmethod
    def load(cls, folder: Path | str) -> Run:
        """Read a run that is finished."""
        found = read_results(Path(folder))
        if found is None:
            raise StudyError(f"Expected a finished run, and {folder} has no results.json; run the study to its end.")
        Store(folder).read("run.json", schema=True)  # a newer one would be refused with its number
        return cls(Path(folder), found)


def run(
    study: Study | str,
    out: Path | str | None = None,
    engine: str | Ray | Engine = "local",
    workers: int | None = None,
    on_message: OnMessage | None = None,
    on_progress: OnProgress | None = None,
    models: Mapping[str, Model] | None = None,
) -> Run:
    """Run a study into the folder `out` (default runs/NAME), or what is left of it.

    workers: processes of the local engine (None: one per core). on_message: is given one line for each thing worth printing;
    without it they are logged. on_progress: is called after every unit with how many are done, of how many, and the seconds
    left, if it takes a third argument. Ctrl-C lets the units at work finish and stores them. models: in memory, from `wrap`,
    by the names that results show; they take the place of the study's, and their units run in this process.
    """
    if models is not None:
        if engine != "local" or workers not in (None, 1) or not all(isinstance(one, Model) for one in models.values()):
            raise StudyError(
                "Expected models in memory as {name: sk.wrap(model)}, with the local engine and one worker: other processes "
                "have none."
            )
        study, workers = (Study.load(study) if isinstance(study, str) else study).changed(models=list(models)), 1
    started = time.time()
    with in_memory(models or {}), begun(study, out, engine, workers, on_message, on_progress) as work:
        work.through(work.units)
        results = assemble(work.study, work.store, work.models, work.units, work.about)
        before = (work.store.read("run.json", schema=True) or {}).get("seconds")
        spent = (before if isinstance(before, int | float) else 0.0) + time.time() - started
        work.store.write("run.json", as_json({**work.about, "finished": True, "seconds": round(spent, 1)}))
    return Run(work.store.folder, results)


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
        models = models_of(study, chosen, store.folder, message)
        about = about_run(study, models)
        store.open(study.to_yaml(), about, alone=shard is None)
        yield Work(study, store, models, units_of(study, models), about, chosen, message, progress)


@dataclass(frozen=True)
class Work:
    """A run that was begun: what it consists of, and what does it."""

    study: Study
    store: Store
    models: list[ModelInfo]
    units: list[Unit]
    about: dict[str, Any]  # what run.json holds
    engine: Engine
    on_message: OnMessage
    on_progress: OnProgress

    def through(self, units: list[Unit]) -> None:
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
        known = {info.asked: info for info in self.models}
        weights = {unit.id: weigh(self.study, unit, known[unit.model]) for unit in left}
        ahead, spent, started = sum(weights.values()), 0.0, time.monotonic()
        timed = _takes_time(self.on_progress)
        try:
            with Stop().listening() as stop:
                for unit, result in self.engine.work(self.study, left, self.store.folder, stop):
                    with stop.storing():
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


def models_of(study: Study, engine: Engine, folder: Path, on_message: OnMessage) -> list[ModelInfo]:
    """Every model loaded once, by the engine; extras last, so that the worker that has loaded one goes on with it."""
    shown = shown_names([*study.models, *study.likelihood_models])
    units = [Unit("facts", name, Condition("none"), shown=short) for name, short in shown.items()]
    found: dict[str, dict[str, Any]] = {}
    on_message(f"{LOADING}{', '.join(shown.values())}")
    for unit, result in engine.work(study, units, folder, lambda: False):
        found[unit.model] = result
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
        raise StudyError(
            f"Expected a model that can be loaded, and all were left out ({why}); install one, or name others."
        )


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


def _takes_time(on_progress: OnProgress) -> bool:
    """Whether it can also be told the seconds left."""
    try:
        inspect.signature(on_progress).bind(0, 0, None)
    except (TypeError, ValueError):
        return False
    return True


def check(store: Store, unit: Unit, result: dict[str, Any]) -> None:
    """The controls of the unit's kind; the other side of a pair may not be there yet."""
    kind = kind_of(unit)
    control = kind.control_of(unit)
    kind.check(unit, result, None if control is None else store.find(control))


def assemble(study: Study, store: Store, models: list[ModelInfo], units: list[Unit], about: dict[str, Any]) -> Results:
    """All tables from the stored units; written as results.parquet and results.json."""
    results, table = analysed(study, models, units, store.load, about)
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    store.write("results.parquet", buffer.getvalue())
    store.write("results.json", as_json(results.to_dict()))
    return results
