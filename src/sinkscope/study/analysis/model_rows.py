"""All rows of one model, and how verdicts, claims and summaries find theirs among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sinkscope.study import vocabulary
from sinkscope.study.results import Cell, Dynamics, Interval, LikelihoodChange, Match, PooledCell, Tables

SOLVED = 0.5  # accuracy with nothing masked below which a task has too little to lose


def points(tables: Tables) -> list[tuple[str, str]]:
    """Model and decode setting of what was answered and traced."""
    rows: list[PooledCell | Dynamics] = [*tables.pooled, *tables.dynamics]
    return [(row.model, row.setting) for row in rows]


def first_point(tables: Tables) -> Tables:
    """Of every model, the rows at the first point of a sweep, and those that belong to no point."""
    first: dict[str, str] = {}
    for model, setting in points(tables):
        first.setdefault(model, setting)
    return tables.where(lambda row: getattr(row, "setting", None) in (None, first.get(row.model)))


def solvable(row: PooledCell) -> PooledCell:
    """A pooled row over those tasks only that the model can do; as it is if it can do none."""
    return replace(row, **vars(row.able)) if row.able is not None else row


@dataclass(frozen=True)
class ModelRows:
    """All rows of one model (of a sweep: of its first point), and the margin, in shares."""

    model: str
    tables: Tables
    margin: float

    @cached_property
    def causal(self) -> bool:
        """Whether it writes from left to right."""
        measured: list[Cell | LikelihoodChange] = [*self.tables.cells, *self.tables.pooled, *self.tables.likelihood]
        return any(row.causal for row in measured) or (
            not measured and any(row.columns for row in self.tables.dynamics)
        )

    # ---- traces

    def traced(self, label: str = "none") -> Dynamics | None:
        """What its sinks do under a condition."""
        return next((row for row in self.tables.dynamics if row.condition == label), None)

    def interval(self, name: str) -> Interval | None:
        """Of a mean over generations, with nothing masked."""
        row = self.traced()
        return None if row is None else (row.intervals or {}).get(name)

    # ---- answers to all tasks that the model can do

    @property
    def base(self) -> PooledCell:
        return solvable(next(row for row in self.tables.pooled if row.condition["name"] == "none"))

    def masked(self, rank: str = "clean") -> list[PooledCell]:
        """Plainly masked sinks by K; an ARM's by its last row where that was run."""
        rows = [row for row in self.tables.pooled if vocabulary.is_plain_masking(row.condition)]
        ranked = [solvable(row) for row in rows if row.condition["rank"] == rank]
        usual = vocabulary.usual_rows([row.condition for row in ranked], self.causal)
        return [row for row in ranked if row.condition["rows"] == usual]

    def find(self, *keys: vocabulary.Key) -> PooledCell | None:
        """The row that masks the first of these keys that was run."""
        found = {vocabulary.masked_key(row.condition): row for row in reversed(self.tables.pooled)}
        return next((solvable(found[key]) for key in keys if key in found), None)

    # ---- answers to the first task of the study that it solves, and likelihoods

    @cached_property
    def untouched(self) -> Cell | None:
        """With nothing masked."""
        plain = [row for row in self.tables.cells if row.condition["name"] == "none"]
        return next((row for row in plain if row.accuracy >= SOLVED), plain[0] if plain else None)

    def cell(self, name: str, match: Match | None = None) -> Cell | None:
        """With this key masked, or random keys in its place."""
        asked = [row for row in self.tables.cells if self.untouched and row.task == self.untouched.task]
        return next((row for row in asked if vocabulary.masked_key(row.condition) == (name, match)), None)

    def scored(self, name: str) -> LikelihoodChange | None:
        rows = self.tables.likelihood
        return next((row for row in rows if vocabulary.masked_key(row.condition) == (name, None)), None)

    @cached_property
    def strong(self) -> float | None:
        """The share of the attention that its strong sinks draw; None where they were never masked."""
        found = self.cell("strong sink") or self.scored("strong sink")
        return found.mass_share if found else None
