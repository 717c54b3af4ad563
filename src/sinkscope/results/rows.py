"""`Results`: everything that results.json holds, as frozen rows in the order of their fields.

`to_dict` gives plain JSON values; `read_results` reads and checks a run's file. A class lists its bases from the last fields
to the first, as dataclasses collect them. docs/generate.py makes the JSON schema from these classes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from sinkscope.errors import SinkscopeError, StudyError
from sinkscope.files import read_object, short
from sinkscope.validation import validate

SCHEMA = 2  # 1: claims over all models at once
LARGEST = 128 << 20  # bytes of results.json
ClaimVerdict = Literal["supports", "contradicts", "undecided", "no test"]
Match = Literal["count", "mass"]  # what random keys share with the keys that they stand for


@dataclass(frozen=True)
class ResultRow:
    """Anything that stands in results.json."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a field whose default is None is left out where it is None."""
        return {
            item.name: _plain(value)
            for item in dataclasses.fields(self)
            if (value := getattr(self, item.name)) is not None or item.default is not None
        }


def _plain(value: Any) -> Any:
    if isinstance(value, ResultRow):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Interval(ResultRow):
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float

    def times(self, scale: float) -> Interval:
        """The same in another unit, such as points of shares."""
        return Interval(scale * self.value, scale * self.low, scale * self.high)


@dataclass(frozen=True)
class Difference(ResultRow):
    """A change against the same problems or texts, with its 95 % interval and its p."""

    difference: float
    difference_low: float
    difference_high: float
    p: float

    @property
    def interval(self) -> Interval:
        return Interval(self.difference, self.difference_low, self.difference_high)


@dataclass(frozen=True)
class PairedDifference(Difference):
    """A change of right answers, how many were lost and won, and its p corrected with those that are tested with it."""

    lost: int
    won: int
    p_holm: float


@dataclass(frozen=True)
class Control(PairedDifference):
    """A cell against random keys, problem by problem; what they took, and what hidden keys received nevertheless (leak)."""

    accuracy: float
    key_share: float | None
    mass_share: float | None
    leak: float


@dataclass(frozen=True)
class Answered(PairedDifference):
    """Right answers, compared with nothing masked and with random keys; what was taken of the keys and the attention."""

    n: int
    correct: int
    accuracy: float
    low: float
    high: float
    key_share: float | None
    mass_share: float | None
    controls: Mapping[Match, Control]


@dataclass(frozen=True)
class CellKey(ResultRow):
    """Which answers a row is about."""

    model: str
    family: str
    causal: bool
    task: str
    setting: str
    condition: Mapping[str, Any]
    label: str


@dataclass(frozen=True)
class Cell(Answered, CellKey):
    """Answers of one model to one task under one condition."""

    leak: float
    confidence: float | None
    paper: float | None
    per_percent: float | None = None  # points of accuracy per percent of the attention removed
    p_primary: float | None = None  # of a primary comparison: corrected over all primary ones of the study
    # Of benchmarks: how they were asked, what others report, how a sequential comparison ended, how the answers shifted.
    protocol: str | None = None
    published: list[Mapping[str, Any]] | None = None
    sequential: Mapping[str, Any] | None = None
    shift: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class PooledCell(Cell):
    """A cell with all tasks together, and once more without those that the model can hardly do."""

    weak: Mapping[str, float]
    able: Answered | None


@dataclass(frozen=True)
class Compared(PairedDifference):
    """A point of a sweep against the first one, over the tasks that the model can do at one of them."""

    n: int


@dataclass(frozen=True)
class PointKey(ResultRow):
    """Which point of a decode sweep a row is about, and the point that it is compared with."""

    model: str
    task: str
    setting: str
    against: str


@dataclass(frozen=True)
class SweepPoint(PairedDifference, PointKey):
    """A point of a decode sweep without intervention, against the first one."""

    weak: Mapping[str, float]
    able: Compared | None


@dataclass(frozen=True)
class TraceKey(ResultRow):
    """What was traced; the label of the condition, not its settings."""

    model: str
    setting: str
    condition: str


@dataclass(frozen=True)
class KindShare(TraceKey):
    """The share of the sinks that a kind of token is, with its interval, beside its share of the canvas."""

    kind: str
    share: float
    low: float
    high: float
    base: float
    enrichment: float | None
    sinks: int
    generations: int
    rule: str
    unit: str | None


@dataclass(frozen=True)
class TokenShare(KindShare):
    """The same of one token."""

    token: str


@dataclass(frozen=True)
class Curve(TraceKey):
    """The share of the keys that are no sinks at one epsilon."""

    unit: str
    epsilon: float
    non_sinks: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Heads(ResultRow):
    """Shares of heads by what their sinks do, and means over heads and generations."""

    static: float
    moving: float
    flash: float
    split: float
    none: float
    left: float
    right: float
    wander: float
    presence: float | None
    sinks: float | None
    strength: float | None
    absorption: float | None
    entropy_relative: float | None
    lifetime: float | None
    jaccard: float | None
    one_step_share: float | None
    displacement: float | None
    moves: float | None
    trend: float | None
    home_share: float | None
    value_ratio: float | None
    split_share: float | None
    agreement: float | None


@dataclass(frozen=True)
class LayerHeads(Heads):
    """One layer's heads, with the share of attention on key 0."""

    layer: int
    first_key: float


@dataclass(frozen=True)
class Dynamics(Heads, TraceKey):
    """What the sinks of a model do under one condition: its heads, what was found, where it stands, and layer by layer."""

    generations: int
    sinks_found: int
    non_sinks: float
    places: Mapping[str, float | None]
    rules: list[Mapping[str, Any]]
    layers: list[LayerHeads]
    rule: str
    unit: str | None
    epsilon: float | None
    intervals: Mapping[str, Interval] | None = None  # over generations
    columns: Heads | None = None  # of an ARM: the same heads by their columns so far, per row that sees the key
    part: str = "all"  # of the generation: while the answer is written, the rest, or all of it
    headers: int | None = None  # different chat headers among the prompts; 0 where the model has none

    @property
    def judged(self) -> Heads:
        """An ARM writes one row per step: its heads are judged by their columns so far, where those were measured."""
        return self.columns or self

    @property
    def key_0(self) -> float:
        """Share of the attention on key 0, mean over layers."""
        return sum(layer.first_key for layer in self.layers) / max(len(self.layers), 1)


@dataclass(frozen=True)
class Mechanism(ResultRow):
    """Change of confidence and of the commit step in the half that depended more on the masked keys, and in the other."""

    model: str
    k: int
    problems: int
    unit: str
    dependence_high: float | None = None
    confidence_sinks_high: float | None = None
    delay_sinks_high: float | None = None
    confidence_random_high: float | None = None
    delay_random_high: float | None = None
    dependence_low: float | None = None
    confidence_sinks_low: float | None = None
    delay_sinks_low: float | None = None
    confidence_random_low: float | None = None
    delay_random_low: float | None = None
    confidence_sinks_gap: Interval | None = None
    confidence_random_gap: Interval | None = None
    confidence_gap_beyond_random: Interval | None = None
    delay_sinks_gap: Interval | None = None
    delay_random_gap: Interval | None = None
    delay_gap_beyond_random: Interval | None = None
    # The same with commits by a threshold, so that their number per step is free, of problems that took more than one.
    free_problems: int | None = None
    free_delay_sinks: Interval | None = None
    free_delay_random: Interval | None = None
    free_delay_beyond_random: Interval | None = None
    free_delay_sinks_gap: Interval | None = None
    free_delay_gap_beyond_random: Interval | None = None
    free_steps_sinks: Interval | None = None
    free_steps_beyond_random: Interval | None = None


@dataclass(frozen=True)
class TextKey(ResultRow):
    """Which texts a row is about, and their mean log-likelihood."""

    model: str
    condition: Mapping[str, Any]
    label: str
    n: int
    tokens: int
    unit: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LikelihoodChange(Difference, TextKey):
    """Mean log-likelihood per token under a condition, paired text by text with nothing masked."""

    key_share: float | None
    mass_share: float | None
    leak: float
    of: Literal["texts", "answers"] = "texts"  # held-out text, or the true answers to problems
    causal: bool = True  # only autoregressive models are measured by the likelihood of text


@dataclass(frozen=True)
class FirstKey(ResultRow):
    """Share of the attention on key 0, layer by layer."""

    model: str
    layers: list[float]


@dataclass(frozen=True)
class Verdict(ResultRow):
    """A claim's verdict in short; written from the claims."""

    model: str
    name: str
    value: str
    because: str


@dataclass(frozen=True)
class ClaimControl(ResultRow):
    """Random keys in place of the sinks: what they cost, in the unit of the claim, and the attention that they took."""

    condition: str
    estimate: float
    low: float
    high: float
    dose: float | None


@dataclass(frozen=True)
class Claim(ResultRow):
    """A claim about one model, tested under one condition; (name, model, condition, definition) is its key."""

    name: str
    claim: str
    paper_model: str | None  # the model of the paper that this one stands for
    model: str
    condition: str
    verdict: ClaimVerdict
    estimate: float
    low: float
    high: float
    unit: str
    n: int
    dose: float | None  # share of the attention that was taken
    control: ClaimControl | None
    because: str
    limit: float  # what the whole interval must lie above or below, in the same unit
    needed: int | None = None  # problems that would decide an undecided row
    definition: str = ""  # of a sink, where the claim depends on it
    p: float | None = None  # of a value as far from the limit, from the interval; corrected over the claims of the run
    p_holm: float | None = None


@dataclass(frozen=True)
class RunFacts(ResultRow):
    """What the results were made from."""

    study: str
    seed: int
    models: list[Mapping[str, Any]]
    versions: Mapping[str, str]
    backend: str
    about: str
    units: int
    conditions: int
    margin: float  # points


@dataclass(frozen=True)
class Tables(ResultRow):
    """The measured rows, from which verdicts and claims are judged."""

    cells: list[Cell]
    pooled: list[PooledCell]
    settings: list[SweepPoint]
    tokens: list[TokenShare]
    kinds: list[KindShare]
    dynamics: list[Dynamics]
    curves: list[Curve]
    mechanism: list[Mechanism]
    likelihood: list[LikelihoodChange]
    first_key: list[FirstKey]

    def where(self, keep: Callable[[Any], bool]) -> Tables:
        """The rows of every table that `keep` says yes to."""
        return Tables(**{name: [row for row in getattr(self, name) if keep(row)] for name in TABLES})

    def of(self, model: str) -> Tables:
        return self.where(lambda row: bool(row.model == model))


TABLES = tuple(item.name for item in dataclasses.fields(Tables))


@dataclass(frozen=True)
class Results(Tables):
    """The whole of results.json, in its order."""

    verdicts: list[Verdict]
    run: RunFacts
    claims: list[Claim]
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        made = super().to_dict()
        return {"schema": self.schema, "claims": made.pop("claims"), **made}


def read_results(folder: Path, error: type[SinkscopeError] = StudyError) -> Results | None:
    """results.json of a run, named by its folder or itself; None where there is none."""
    path = folder if folder.is_file() else folder / "results.json"
    if not path.is_file():
        return None
    found = read_object(path, LARGEST, error)
    if (schema := found.get("schema")) != SCHEMA:
        raise error(f"{path} must have schema {SCHEMA}, not {short(repr(schema), 40)}; run the study again.")
    results: Results = validate(Results, found, f"{path} is damaged; rerun the study", error)
    return results


def need_results(folder: Path) -> Results:
    """The results of a run that is finished."""
    results = read_results(folder)
    if results is None:
        raise StudyError(f"Expected a finished run, and {folder} has no results.json; run the study to its end.")
    return results


def read_answers(folder: Path) -> pl.DataFrame:
    """Everything that was answered or scored in a run, one row per problem."""
    path = folder / "results.parquet"
    try:
        frame = pl.read_parquet(path)
        frame.select("kind", "model", "setting", "condition", "task", "problem", "correct")  # it is of a run
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        raise StudyError(f"{path}, the answers of a run, is missing or damaged; run the study again.") from None
    return frame


# ---- rows as polars frames: every value in a column of its own, so that a frame is also a CSV file


def to_frame(rows: Sequence[ResultRow], kind: type[ResultRow]) -> pl.DataFrame:
    """A row each; `condition_k` is the field k of the field condition, a list is JSON; without rows, the plain columns."""
    if not rows:
        return pl.DataFrame(schema=[field.name for field in dataclasses.fields(kind)])
    flat = [dict(_flat(row.to_dict())) for row in rows]
    made = pl.DataFrame(flat, strict=False, infer_schema_length=None)
    # Where some rows have nothing in place of nested fields, that is a column of nothing.
    nothing = [name for name, kind in made.schema.items() if kind == pl.Null]
    return made.drop(name for name in nothing if any(other.startswith(f"{name}_") for other in made.columns))


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, list) else value
