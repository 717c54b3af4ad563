"""`run`: a study becomes a folder of results, an existing run is resumed; `Run`: what a finished one found."""

from __future__ import annotations

import html
import inspect
import io
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import polars as pl

from sinkscope.conditions import NONE
from sinkscope.errors import StudyError
from sinkscope.models.model import Model
from sinkscope.progress import LOADING
from sinkscope.registry import import_file
from sinkscope.results.claims import judge_claims, verdicts_of
from sinkscope.results.findings import Finding, list_findings, write_summary
from sinkscope.results.rows import (
    TABLES,
    Cell,
    Claim,
    ResultRow,
    Results,
    RunFacts,
    Tables,
    need_results,
    read_answers,
    to_frame,
)  # fmt: skip
from sinkscope.results.text import table1_markdown, write_tables
from sinkscope.study.engine import Engine, Ray, choose_engine, workers_that_know
from sinkscope.study.problem_sets import ProblemSets
from sinkscope.study.schema import Study
from sinkscope.study.store import RUN_SCHEMA, Store, as_json, list_versions
from sinkscope.study.units import Job, ModelInfo, Unit, kind_of, kinds, units_of, weigh
from sinkscope.study.units.accuracy import answer_table, benchmark_cells, plan_round
from sinkscope.study.units.worker import in_memory

logger = logging.getLogger(__name__)
OnMessage = Callable[[str], object]
OnProgress = Callable[..., object]  # units done, units in all, and, where it takes a third, the seconds left


# ---- a finished run


@dataclass(frozen=True)
class Run:
    """Finished run of a study, as returned by `sk.run` and opened by `sk.Run.load`; its tables are polars data frames.

    Args:
        folder: Folder of the run.
        rows: Results, table by table, as rows with named fields.
    """

    folder: Path
    rows: Results

    def __repr__(self) -> str:
        names = ", ".join(str(model.get("name")) for model in self.rows.run.models)
        return f"Run({self.rows.run.study}: {names}; {self.rows.run.conditions} conditions; {self.folder})"

    def _repr_html_(self) -> str:
        """A notebook's card: what ran, the findings, and where the tables are."""
        lines = [self.rows.run.about, *(one.sentence for one in self.findings())]
        lines.append("Tables: .cells() · .claims() · .answers() · print(run.summary())")
        shown = "".join(f"<p>{html.escape(line)}</p>" for line in lines if line)
        return f"<p><b>{html.escape(repr(self))}</b></p>{shown}"

    def findings(self) -> list[Finding]:
        """Return the paper's findings for this run, one sentence each."""
        return list_findings(self.rows)

    def cells(self) -> pl.DataFrame:
        """Return accuracy per model, task, decode setting and condition, with confidence intervals and controls."""
        return to_frame(self.rows.cells, Cell)

    def claims(self) -> pl.DataFrame:
        """Return the paper's claims, one row per model, condition and sink rule, with the verdict and its evidence."""
        return to_frame(self.rows.claims, Claim)

    def answers(self) -> pl.DataFrame:
        """Return every answer and every scored text, one row per problem."""
        return read_answers(self.folder)

    def table(self, name: str) -> pl.DataFrame:
        """Return one table of results.json, or the answers.

        Args:
            name: Name of the table ("cells", "tokens", "dynamics", "likelihood", and so on), or "answers".
        """
        if name == "answers":
            return self.answers()
        rows = getattr(self.rows, name)
        return to_frame(rows, type(rows[0]) if rows else ResultRow)

    @cached_property
    def results(self) -> dict[str, Any]:
        """Results as plain JSON values."""
        return self.rows.to_dict()

    def summary(self, full: bool = False) -> str:
        """Write a summary of the results.

        Args:
            full: True for every table; False for at most 25 lines of 80 columns.
        """
        if full:
            return write_tables(self.rows)
        seconds = (Store(self.folder).read("run.json") or {}).get("seconds")
        return write_summary(self.rows, self.folder, seconds if isinstance(seconds, int | float) else None)

    def unexpected(self, study: Study) -> list[str]:
        """List the verdicts that differ from those that a study expects, one line each.

        Args:
            study: Study with `expected` verdicts.
        """
        verdicts = {(row.model, row.name): row.value for row in self.rows.verdicts}
        return [
            f"{model} {name}: expected {value}, came {verdicts.get((model, name), 'no such claim')}"
            for model, wanted in study.expected.items()
            for name, value in wanted.items()
            if verdicts.get((model, name)) != value
        ]

    @classmethod
    def load(cls, folder: Path | str) -> Run:
        """Open a finished run.

        Args:
            folder: Folder of the run, or its results.json.

        Raises:
            StudyError: If the run is not finished, or the folder has no results.
        """
        path = Path(folder)
        return cls(path.parent if path.is_file() else path, need_results(path))


def run(
    study: Study | str | Mapping[str, Any],
    out: Path | str | None = None,
    engine: str | Ray | Engine = "local",
    workers: int | None = None,
    on_message: OnMessage | None = None,
    on_progress: OnProgress | None = None,
    models: Mapping[str, Model] | None = None,
    plugins: Sequence[str | os.PathLike[str]] = (),
) -> Run:
    """Run a study, or continue one that was stopped.

    Finished work items are stored in the folder and not repeated. Ctrl-C lets the present work items finish and stores
    them.

    Args:
        study: Study, name of a shipped study, name of a YAML file, or mapping with the fields of a study file.
        out: Folder of the run; the default is runs/NAME.
        engine: "local", a Ray cluster (`Ray`), or an engine of your own.
        workers: Number of processes of the local engine; None starts one per core.
        on_message: Function that is called with each line worth printing; without it lines are logged.
        on_progress: Function that is called after every work item with the number of finished items, the total number
            and, if it takes a third argument, the seconds left.
        models: Models in memory (from `load` or `wrap`) by the name that results show. They replace the study's models
            and run in this process.
        plugins: Python files that register tasks, rules, interventions or samplers of your own, imported here and in
            every worker. Names registered in a notebook are known to its process only, so work items that need them run
            there.

    Raises:
        StudyError: If the study or the folder cannot be used.
    """
    for file in [plugins] if isinstance(plugins, str | os.PathLike) else plugins:
        import_file(file)
    plan = read_study(study)
    if models is not None:
        if engine != "local" or workers not in (None, 1) or not all(isinstance(one, Model) for one in models.values()):
            raise StudyError(
                "Expected models in memory as {name: sk.wrap(model)}, with the local engine and one worker."
            )
        plan, workers = plan.changed(models=list(models)), 1
    started = time.time()
    with in_memory(models or {}), open_run(plan, out, engine, workers, on_message, on_progress) as work:
        results = work.assemble(work.run_all())
        before = (work.store.read("run.json", schema=True) or {}).get("seconds")
        spent = (before if isinstance(before, int | float) else 0.0) + time.time() - started
        work.store.write("run.json", as_json({**work.about, "finished": True, "seconds": round(spent, 1)}))
    return Run(work.store.folder, results)


def read_study(study: Study | str | Mapping[str, Any]) -> Study:
    """A study in any of the forms that `run` takes."""
    if isinstance(study, Study):
        return study
    return Study.load(study) if isinstance(study, str) else Study.from_dict(study)


# ---- a run at work


@contextmanager
def open_run(
    study: Study,
    out: Path | str | None = None,
    engine: str | Ray | Engine = "local",
    workers: int | None = None,
    on_message: OnMessage | None = None,
    on_progress: OnProgress | None = None,
    shard: str | None = None,
) -> Iterator[Work]:
    """A folder that is locked and holds this run, with its models known and its units planned; shard: only this part."""
    message, progress = on_message or logger.info, on_progress or (lambda done, total: None)
    store = Store(Path("runs") / study.name if out is None else out)
    chosen = choose_engine(engine, workers_that_know(study, engine, workers, message), message)
    with store.locked(shard), closing(chosen):
        sets = ProblemSets(study)
        study = sets.count_problems()
        models = [sets.add_protocols(info) for info in load_facts(study, chosen, store.folder, message)]
        about = describe_run(study, models)
        store.open(study.to_yaml(), about, alone=shard is None)
        for line in sets.describe(models):
            message(line)
        yield Work(study, store, sets, models, units_of(study, models), about, chosen, message, progress)


@dataclass(frozen=True)
class Work:
    """A run at work: what it consists of, and what does it."""

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
        self.assemble(answers)
        for line in (self.store.folder / "table1.md").read_text(encoding="utf-8").splitlines():
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
                check_unit(self.store, unit, result)
        done = len(units) - len(left)
        if done and left:
            self.on_message(f"{done} of {len(units)} units are there already")
        self.on_progress(done, len(units))
        infos = {info.asked: info for info in self.models}
        weights = {unit.id: weigh(self.study, unit, infos[unit.model]) for unit in left}
        ahead, spent, started = sum(weights.values()), 0.0, time.monotonic()
        timed = len(inspect.signature(self.on_progress).parameters) > 2
        try:
            with Stop().listening() as stop:
                jobs = [self.sets.make_job(unit) for unit in left]
                for job, raw in self.engine.work(self.study, jobs, self.store.folder, stop):
                    with stop.storing():
                        result = self.sets.grade(job.unit, raw)
                        check_unit(self.store, job.unit, result)
                        self.store.save(job.unit, result)
                        done += 1
                    spent += weights[job.unit.id]
                    pace = (time.monotonic() - started) / max(spent, 1e-9)  # seconds for what was expected to take one
                    seconds = pace * (ahead - spent) if done < len(units) else 0.0
                    self.on_progress(done, len(units), *([seconds] if timed else []))
                if done < len(units):
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            self.on_message(f"stopped: {done} of {len(units)} units are stored; rerun the command to resume")
            raise

    def assemble(self, units: Sequence[Unit]) -> Results:
        """All tables from the stored units; written as results.parquet and results.json."""
        return assemble(self.study, self.store, self.models, units, self.about)


def assemble(
    study: Study, store: Store, models: Sequence[ModelInfo], units: Sequence[Unit], about: Mapping[str, Any]
) -> Results:
    """All tables of a run from its stored units, written as results.parquet, results.json and, of benchmarks, table1.md."""
    by_id = {unit.id: unit for unit in units}
    load_once = cache(lambda name: store.load(by_id[name]))
    infos = {info.name: info for info in models}

    def load(unit: Unit) -> dict[str, Any]:
        found: dict[str, Any] = load_once(unit.id)
        return found

    rows: dict[str, list[Any]] = {name: [] for name in TABLES}
    for kind in kinds().values():
        own = [unit for unit in units if unit.kind == kind.name]
        for name, more in kind.rows(study, infos, own, load).items() if own else ():
            rows[name] += more
    if study.has_table:
        rows["cells"] = benchmark_cells(study, infos, units, rows["cells"], store.find)
    tables = Tables(**rows)
    facts = RunFacts(
        **{name: about[name] for name in ("study", "seed", "models", "versions", "backend")},
        about=study.about, units=len(units), conditions=len(study.conditions), margin=study.margin,
    )  # fmt: skip
    claims = judge_claims(tables, study.margin / 100)
    results = Results(**vars(tables), verdicts=verdicts_of(claims), run=facts, claims=claims)
    buffer = io.BytesIO()
    answer_table(units, load).write_parquet(buffer)
    store.write("results.parquet", buffer.getvalue())
    if study.has_table:
        dtypes = ", ".join(sorted({str(info.identity["dtype"]) for info in models}))
        run_with = {"batch size": study.chunk, "dtype": dtypes, **about["machine"], **about["versions"]}
        store.write("table1.md", table1_markdown(results.cells, run_with))
    store.write("results.json", as_json(results.to_dict()))
    return results


def check_unit(store: Store, unit: Unit, result: dict[str, Any]) -> None:
    """The controls of the unit's kind; the other side of a pair may not be there yet."""
    kind = kind_of(unit)
    control = kind.control_of(unit)
    kind.check(unit, result, None if control is None else store.find(control))


# ---- Ctrl-C


class Stop:
    """Whether an end was asked for: the first Ctrl-C lets the units at work finish, the second one ends at once.

    SIGTERM and SIGHUP end at once, too, where the program has handlers for them. Nothing ends while a unit is stored.
    """

    def __init__(self) -> None:
        self.requested = False
        self._storing = False
        self._late: list[int] = []
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.requested

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

    def _receive(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT and not self.requested:
            self.requested = True
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
        self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, *ending)}
        try:
            yield self
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)


# ---- what is known before the plan


def load_facts(study: Study, engine: Engine, folder: Path, on_message: OnMessage) -> list[ModelInfo]:
    """Every model loaded once, by the engine; extras last, so that the worker that has loaded one goes on with it."""
    shown = shown_names([*study.models, *study.extra_models])
    jobs = [Job(Unit("facts", name, NONE, shown=short)) for name, short in shown.items()]
    facts: dict[str, dict[str, Any]] = {}
    on_message(f"{LOADING}{', '.join(shown.values())}")
    for job, result in engine.work(study, jobs, folder, lambda: False):
        facts[job.model] = result
        if waiting := [short for name, short in shown.items() if name not in facts]:
            on_message(f"{LOADING}{', '.join(waiting)}")
    left_out = [result["left_out"] for result in facts.values() if "left_out" in result]
    for why in left_out:
        on_message(f"left out: {why}")
    need_a_model(len(facts) - len(left_out), left_out)
    return [ModelInfo(**facts[name]) for name in shown if "left_out" not in facts[name]]


def need_a_model(count: int, left_out: Sequence[str]) -> None:
    """Refuse a run of which every model was left out."""
    if not count:
        why = "; ".join(line.rstrip(".") for line in left_out)
        raise StudyError(f"Expected a model, and all were left out ({why}); install one, or name others.")


def shown_names(names: list[str]) -> dict[str, str]:
    """Folders and Hub ids by their last part, where that tells them apart."""
    last = {name: name.rstrip("/").split("/")[-1] or name for name in names}
    return {name: short if list(last.values()).count(short) == 1 else name for name, short in last.items()}


def describe_run(study: Study, models: list[ModelInfo]) -> dict[str, Any]:
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
        "versions": list_versions(),
        "backend": backend,
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "device": device,
            **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        },
    }
