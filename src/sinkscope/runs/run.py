"""`run`: a study becomes a folder of results, an existing run is resumed; `Run`: what a finished one found."""

from __future__ import annotations

import html
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from sinkscope.errors import StudyError
from sinkscope.models.model import Model
from sinkscope.runs.summary import summary
from sinkscope.runs.tables import tables
from sinkscope.study.engines import Engine, Ray
from sinkscope.study.results import Cell, Claim, Results, read_results, to_frame
from sinkscope.study.run import OnMessage, OnProgress, assemble, begun
from sinkscope.study.schema import Study
from sinkscope.study.store import Store, as_json
from sinkscope.study.units.given import in_memory


@dataclass(frozen=True)
class Run:
    """A finished run: `sk.run` returns it, `sk.Run.load(folder)` opens it; its tables are polars frames, with `.to_pandas()`."""

    folder: Path
    found: Results  # as rows with named fields

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
            raise StudyError(f"{path}, the answers of a run, is missing or damaged; run the study again.") from None
        return found

    @cached_property
    def results(self) -> dict[str, Any]:
        """The results as plain JSON values."""
        return self.found.to_dict()

    def summary(self, full: bool = False) -> str:
        """What came out, as at most 42 lines of 80 columns; full: every table and every verdict with its numbers."""
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
                "Expected models in memory as {name: sk.wrap(model)}, with the local engine and one worker."
            )
        study, workers = (Study.load(study) if isinstance(study, str) else study).changed(models=list(models)), 1
    started = time.time()
    with in_memory(models or {}), begun(study, out, engine, workers, on_message, on_progress) as work:
        units = work.run_all()
        results = assemble(work.study, work.store, work.models, units, work.about)
        before = (work.store.read("run.json", schema=True) or {}).get("seconds")
        spent = (before if isinstance(before, int | float) else 0.0) + time.time() - started
        work.store.write("run.json", as_json({**work.about, "finished": True, "seconds": round(spent, 1)}))
    return Run(work.store.folder, results)
