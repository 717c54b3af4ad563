"""All rows of one model, and how claims and findings select theirs among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sinkscope.results import series
from sinkscope.results.rows import Cell, Dynamics, LikelihoodChange, Match, PooledCell, Tables

SOLVED = 0.5  # accuracy with nothing masked below which a task has too little to lose


def points_of(tables: Tables) -> list[tuple[str, str]]:
    """Model and decode setting of what was answered and traced."""
    rows: list[Cell | Dynamics] = [*tables.pooled, *tables.cells, *tables.dynamics]
    return [(row.model, row.setting) for row in rows]


def first_point(tables: Tables) -> Tables:
    """Of every model, the rows at the first point of a sweep, and those that belong to no point."""
    first: dict[str, str] = {}
    for model, setting in points_of(tables):
        first.setdefault(model, setting)
    return tables.where(lambda row: getattr(row, "setting", None) in (None, first.get(row.model)))


def without_weak_tasks(row: PooledCell) -> PooledCell:
    """A pooled row over the tasks that the model can do; as it is if it can do none."""
    return replace(row, **vars(row.able)) if row.able is not None else row


@dataclass(frozen=True)
class ModelRows:
    """All rows of one model (of a sweep: of its first point), and the margin, in shares."""

    model: str
    tables: Tables
    margin: float

    @cached_property
    def causal(self) -> bool:
        """Whether it is autoregressive."""
        measured: list[Cell | LikelihoodChange] = [*self.tables.cells, *self.tables.pooled, *self.tables.likelihood]
        if measured:
            return any(row.causal for row in measured)
        return any(row.columns for row in self.tables.dynamics)

    def traced(self, condition: str = "none") -> list[Dynamics]:
        """What its sinks do while the answer is written, a row per definition; over all of it in runs that have no parts."""
        rows = [row for row in self.tables.dynamics if row.condition == condition]
        return [row for row in rows if row.part == "answer"] or rows

    @cached_property
    def untouched(self) -> Cell | None:
        """The first task of the study that it solves, with nothing masked; the first one if it solves none."""
        plain = [row for row in self.tables.cells if row.condition["name"] == "none"]
        return next((row for row in plain if row.accuracy >= SOLVED), plain[0] if plain else None)

    def cell(self, name: str, match: Match | None = None) -> Cell | None:
        """That task with this key masked, or with random keys in its place."""
        tested = [row for row in self.tables.cells if self.untouched and row.task == self.untouched.task]
        return next((row for row in tested if series.masked_key(row.condition) == (name, match)), None)

    def scored(self, name: str) -> LikelihoodChange | None:
        """The likelihood with this key masked."""
        rows = self.tables.likelihood
        return next((row for row in rows if series.masked_key(row.condition) == (name, None)), None)
