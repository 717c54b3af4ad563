"""Which experiment a row belongs to: what its condition masks, the part that it plays on a chart, and its short name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sinkscope.conditions import Condition
from sinkscope.results.rows import Cell, Dynamics, LikelihoodChange, Match, PooledCell, Tables

Settings = Mapping[str, Any]  # a condition as results.json has it
MaskedKey = tuple[str, Match | None]  # what is masked, and what random keys share with it
PLAIN = {"name", "k", "rank", "rows"}

# What one masked key per head is, by what its condition says; rules go by their names.
_TOP = {"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all"}
KEYS: Mapping[str, Settings] = {
    "top key": _TOP,
    "last row's top key": {**_TOP, "rows": "last"},
    "strong sink": {**_TOP, "above": "head_share"},
    "structural key": {**_TOP, "kinds": "structural"},
    "content key": {**_TOP, "kinds": "content"},
    "weak top key": {**_TOP, "below": "head_share"},
    "position 0": {"name": "mask_positions", "positions": [0], "since": "second"},
}
# Random keys are drawn until they have the top key's mass; where one key draws half of the attention there are not enough.
_SCORED_KEYS: Mapping[str, MaskedKey] = {
    **{name: (name, None) for name in ("top key", "strong sink", "structural key", "content key", "weak top key")},
    "random, ≤ its mass": ("top key", "mass"),
    "random, as many": ("top key", "count"),
    "position 0": ("position 0", None),
}

# A role decides name, colour and mark of a series, the same on every chart: `sinks` is the experiment, `count` and `mass`
# are its random controls, the others are variants.
ROLE_NAMES = {
    "sinks": "sinks masked",
    "count": "random keys, count-matched",
    "mass": "random keys, mass-matched",
    "as_run": "sinks, ranked on applied attention",
    "other_rows": "sinks, ranked by whole columns",
    "position": "position 0 masked",
}


def masked_key(condition: Settings) -> MaskedKey | None:
    """Which key per head this masks; random keys are named by the key that they stand for; None for anything else."""
    named = {name: value.get("rule") if isinstance(value, Mapping) else value for name, value in condition.items()}
    settings = {name: value for name, value in named.items() if value not in (None, 0)}
    match: Match | None = None
    if settings.get("name") == "mask_random":
        match = settings.pop("match", "count")
        settings["name"] = "mask_sinks"
    return next(((name, match) for name, wanted in KEYS.items() if settings == wanted), None)


def is_untouched(condition: Settings) -> bool:
    """Nothing changed, or the no-op that must change nothing."""
    return condition["name"] in ("none", "noop")


def is_plain_masking(condition: Settings) -> bool:
    """Masked sinks ranked by all or by the last row, with nothing further said."""
    return condition["name"] == "mask_sinks" and set(condition) <= PLAIN


def is_of_the_paper(condition: Settings, family: str) -> bool:
    """Nothing or sinks masked, ranked as the paper ranks them: an autoregressive model's by its last row."""
    plain = condition["name"] in ("none", "mask_sinks") and set(condition) == PLAIN
    return plain and condition["rows"] in (None, "last" if family == "llama" else "all")


def group_by_key(rows: Sequence[LikelihoodChange]) -> dict[str, dict[str, LikelihoodChange]]:
    """What one masked key per head changes in models that were scored on the same true answers: name → model → row."""
    groups: dict[str, dict[str, LikelihoodChange]] = {}
    for name, key in _SCORED_KEYS.items():
        mine = {row.model: row for row in rows if row.of == "answers" and masked_key(row.condition) == key}
        groups |= {name: mine} if mine else {}
    return groups


# ---- roles on the charts ----


def ranking_rows(conditions: Sequence[Settings], causal: bool) -> str:
    """By which rows a model's sinks are ranked in the experiment: an autoregressive one's by its last, if that ran."""
    masked = {str(one.get("rows") or "all") for one in conditions if one["name"] == "mask_sinks"}
    return "last" if causal and "last" in masked else "all"


def role_of(condition: Settings, rows: str = "all") -> str | None:
    """The part that a condition plays for a model whose sinks are ranked by `rows`; None for what is not charted.

    A sink test by another intervention, one that names controls, is a series of its own; its label is its role.
    """
    typed = Condition.from_dict(condition)
    settings = {name: value for name, value in typed.words.items() if name != "k"}
    rank, by = settings.pop("rank", "clean"), settings.pop("rows", "all")
    if masked_key(condition) == ("position 0", None):
        return "position"
    if typed.name == "mask_random":
        match = settings.pop("match", "count")
        return match if not settings and by == rows and rank == "clean" else None
    if typed.name != "mask_sinks":
        return typed.label.replace(f" K={typed.k}", "") if typed.controls() and typed.k else None
    if settings or (by != rows and rank != "clean"):
        return None
    return "other_rows" if by != rows else "sinks" if rank == "clean" else "as_run"


# ---- names ----


def without_defaults(label: str) -> str:
    """A label without the words that most conditions have in common."""
    return label.replace(" clean", "").replace(" by all rows", "")


def short_names(conditions: Mapping[str, Settings], causal: bool) -> dict[str, str]:
    """Whole label → short name, of conditions in one table; the label itself where a name would stand for two.

    K, rank and rows are said where the table has several.
    """
    words = ("k", "rank", "rows")
    several = {word for word in words if len({one[word] for one in conditions.values() if one.get(word)}) > 1}
    names = {}
    for label, condition in conditions.items():
        name = Condition.from_dict(condition).short_name({"rank", "rows"} - several, causal)
        k = condition["k"] if "k" in several else None
        names[label] = label if name is None else f"{name}, K={k}" if k else name
    count = list(names.values()).count
    return {label: name if count(name) == 1 else label for label, name in names.items()}


# ---- all rows of one model, and how claims and findings select theirs among them


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
        return next((row for row in tested if masked_key(row.condition) == (name, match)), None)

    def scored(self, name: str) -> LikelihoodChange | None:
        """The likelihood with this key masked."""
        rows = self.tables.likelihood
        return next((row for row in rows if masked_key(row.condition) == (name, None)), None)
