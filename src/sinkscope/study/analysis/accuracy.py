"""Table 1: stored answers put together, every cell with its interval, paired with nothing masked and with random keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import polars as pl

from sinkscope import paper
from sinkscope.interventions.conditions import Condition
from sinkscope.statistics import adjusted, paired, wilson
from sinkscope.study import vocabulary
from sinkscope.study.results import Answered, Cell, Compared, Control, PairedDifference, PooledCell, SweepPoint
from sinkscope.study.schema import Study
from sinkscope.study.units import ModelInfo, Unit
from sinkscope.study.units.given import summed

Loaded = Callable[[Unit], dict[str, Any]]  # a unit's stored result
Key = tuple[str, str, str, Condition]  # model, setting, task, condition
Tested = TypeVar("Tested", bound=Hashable)
Row = TypeVar("Row", bound=PairedDifference)
WEAK = 0.1  # accuracy with nothing masked below which a task has too little to lose


@dataclass
class AnswerSet:
    """All answers of one model, setting and condition: to one task, or to all."""

    tasks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # task → what was stored of each chunk

    def only(self, tasks: Iterable[str]) -> AnswerSet:
        return AnswerSet({task: self.tasks[task] for task in tasks})

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for chunks in self.tasks.values() for chunk in chunks for row in chunk["rows"]]

    @cached_property
    def verdicts(self) -> dict[tuple[str, int], bool]:
        """Task and problem → whether it was answered right, in the order of the tasks and of their problems."""
        found: dict[tuple[str, int], bool] = {}
        for task in self.tasks:
            rows = sorted(self.only([task]).rows, key=lambda row: int(row["problem"]))
            found |= {(task, int(row["problem"])): bool(row["correct"]) for row in rows}
        return found

    @property
    def right(self) -> list[bool]:
        return list(self.verdicts.values())

    def right_at(self, other: AnswerSet) -> list[bool]:
        """Of the problems that another condition answered too: of comparisons that end early, it has fewer."""
        return [self.verdicts[key] for key in other.verdicts]

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)

    def shares(self) -> dict[str, Any]:
        """What was taken away, from the second forward on."""
        return shares(summed(chunk["effect"] for chunk in chunks) for chunks in self.tasks.values())


def shares(effects: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """The same as shares of what was there; None where nothing was counted."""
    effect = summed(effects)
    return {
        "key_share": effect["keys"] / effect["keys_seen"] if effect["keys_seen"] else None,
        "mass_share": effect["mass"] / effect["mass_seen"] if effect["mass_seen"] else None,
        "leak": effect["leak"],
    }


def collect(units: Sequence[Unit], load: Loaded) -> dict[Key, AnswerSet]:
    """Answers of all chunks together."""
    found: dict[Key, AnswerSet] = {}
    for unit in units:
        if unit.kind == "answers":
            key = (unit.shown, unit.setting, unit.task, unit.condition)
            found.setdefault(key, AnswerSet()).tasks.setdefault(unit.task, []).append(load(unit))
    return found


def pooled(answers: dict[Key, AnswerSet]) -> dict[Key, AnswerSet]:
    """The same with all tasks together, as the task "all"."""
    found: dict[Key, AnswerSet] = {}
    for (model, setting, _, condition), one in answers.items():
        found.setdefault((model, setting, "all", condition), AnswerSet()).tasks.update(one.tasks)
    return found


def cells(study: Study, models: Sequence[ModelInfo], answers: dict[Key, AnswerSet]) -> list[Cell]:
    """One cell per model, task, setting and condition, in the order of the plan."""
    known = {model.name: model for model in models}
    made = {key: _cell(known[key[0]], answers, key) for key in answers}
    families: dict[Hashable, list[Key]] = {}
    for key in made:
        if key[3].name not in ("none", "noop"):
            families.setdefault((*key[:3], key[3].series().label), []).append(key)
    for family in families.values():  # across K (or the radius)
        _correct(made, family)
    return _with_primary(study, made)


def _cell(model: ModelInfo, answers: dict[Key, AnswerSet], key: Key) -> Cell:
    name, setting, task, condition = key
    one, base = answers[key], answers[*key[:3], Condition("none")]
    right, says, change, taken = one.right, condition.to_dict(), paired(base.right_at(one), one.right), one.shares()
    low, high = wilson(sum(right), len(right))
    theirs = not setting and vocabulary.as_in_the_paper(says, model.family)
    return Cell(
        model=name, family=model.family, causal=model.causal, task=task, setting=setting, condition=says,
        label=condition.label, n=len(right), correct=sum(right), accuracy=one.accuracy, low=low, high=high,
        **vars(change), p_holm=change.p, **taken, controls=_controls(answers, key),
        confidence=mean_confidence(one.rows),
        paper=paper.accuracy(name, task, condition.k) if theirs else None,
        per_percent=change.difference / share if (share := taken["mass_share"]) else None,
    )  # fmt: skip


def mean_confidence(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean confidence in what was committed; None of benchmarks, whose batches end at their stop strings."""
    values = [row["confidence"] for row in rows if row["confidence"] is not None]
    return sum(values) / len(values) if values else None


def _controls(answers: dict[Key, AnswerSet], key: Key) -> dict[Any, Control]:
    """Against the first control of each kind that was run, problem by problem."""
    found: dict[Any, Control] = {}
    for match, candidates in vocabulary.controls(key[3]).items():
        control = next((answers[*key[:3], one] for one in candidates if (*key[:3], one) in answers), None)
        if control is not None:
            shared = [place for place in answers[key].verdicts if place in control.verdicts]
            before, after = ([one.verdicts[place] for place in shared] for one in (control, answers[key]))
            compared = paired(before, after)
            found[match] = Control(accuracy=control.accuracy, **vars(compared), p_holm=compared.p, **control.shares())
    return found


def _correct(made: dict[Key, Cell], family: Sequence[Key]) -> None:
    """Correct the p values of comparisons that are tested together: with nothing masked, and with each kind of control."""
    made |= corrected({key: made[key] for key in family})
    for match in ("count", "mass"):
        controls = {key: made[key].controls[match] for key in family if match in made[key].controls}
        for key, control in corrected(controls).items():
            made[key] = replace(made[key], controls={**made[key].controls, match: control})


def corrected(rows: Mapping[Tested, Row]) -> dict[Tested, Row]:
    """The same rows, each with its p corrected over all of them."""
    p = adjusted({key: row.p for key, row in rows.items()})
    return {key: replace(row, p_holm=p[key]) for key, row in rows.items()}


def _with_primary(study: Study, made: dict[Key, Cell]) -> list[Cell]:
    """Corrected over all comparisons that the study is about; by default one masked sink against none.

    An ARM's sinks are those of its last row, as in the paper, where that was run.
    """
    masked = {key: vocabulary.masked_key(cell.condition) for key, cell in made.items()}
    by_last = {key[0] for key, what in masked.items() if what == ("last row's top key", None) and made[key].causal}
    usual = {model: ("last row's top key" if model in by_last else "top key", None) for model, *_ in made}
    chosen = [key for key in made if (key[3] in study.primary if study.primary else masked[key] == usual[key[0]])]
    primary = adjusted({key: made[key].p for key in chosen})
    return [replace(cell, p_primary=primary[key]) if key in primary else cell for key, cell in made.items()]


def pooled_cells(study: Study, models: Sequence[ModelInfo], answers: dict[Key, AnswerSet]) -> list[PooledCell]:
    """The same of pooled answers, each also over those tasks only that the model can do."""
    weak = {key: _weak(answers[*key[:3], Condition("none")]) for key in answers}
    able = {
        key: one.only([task for task in one.tasks if task not in weak[key]])
        for key, one in answers.items() if len(weak[key]) < len(one.tasks)
    }  # fmt: skip
    names = [item.name for item in fields(Answered)]
    strong = {
        key: Answered(**{name: getattr(cell, name) for name in names})
        for key, cell in zip(able, cells(study, models, able), strict=True)
    }
    return [
        PooledCell(**vars(row), weak=weak[key], able=strong.get(key))
        for key, row in zip(answers, cells(study, models, answers), strict=True)
    ]


def _weak(*settings: AnswerSet) -> dict[str, float]:
    """Tasks that the model can hardly do in any of the settings, with the largest share of right answers."""
    best = {task: max(one.only([task]).accuracy for one in settings) for task in settings[0].tasks}
    return {task: share for task, share in best.items() if share < WEAK}


def sweep_points(answers: dict[Key, AnswerSet]) -> list[SweepPoint]:
    """Points of a decode sweep without intervention, each against the first, problem by problem; corrected over the points."""
    sweeps: dict[tuple[str, str], list[tuple[str, AnswerSet]]] = {}
    for (model, setting, task, condition), one in answers.items():
        if condition.name == "none":
            sweeps.setdefault((model, task), []).append((setting, one))
    return [row for key, points in sweeps.items() for row in _compared_points(*key, points)]


def _compared_points(model: str, task: str, points: Sequence[tuple[str, AnswerSet]]) -> Iterable[SweepPoint]:
    (against, first), *others = points
    rows = {}
    for setting, one in others:
        weak = _weak(first, one)
        tasks = [name for name in one.tasks if name not in weak]
        before, after = first.only(tasks).right, one.only(tasks).right
        can, change = paired(before, after), paired(first.right, one.right)
        able = Compared(n=len(after), **vars(can), p_holm=can.p) if tasks else None
        words = {**vars(change), "p_holm": change.p, "weak": weak, "able": able}
        rows[setting] = SweepPoint(model, task, setting, against, **words)
    strong = corrected({setting: row.able for setting, row in rows.items() if row.able})
    return [replace(row, able=strong.get(setting)) for setting, row in corrected(rows).items()]


def answer_table(units: Sequence[Unit], load: Loaded) -> pl.DataFrame:
    """Everything that was answered or scored, one row per problem, in the order of the plan."""
    rows = []
    for unit in units:
        if unit.kind in ("answers", "likelihood", "forced"):
            about = {
                "kind": unit.kind, "model": unit.shown, "setting": unit.setting, "condition": unit.condition.label,
                **{name: getattr(unit.condition, name) for name in ("name", "k", "rank", "rows", "match")}, "task": unit.task,
            }  # fmt: skip
            rows += [{**about, **row} for row in sorted(load(unit)["rows"], key=lambda row: int(row["problem"]))]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


COLUMNS: dict[str, Any] = {
    "kind": pl.String, "model": pl.String, "setting": pl.String, "condition": pl.String, "name": pl.String, "k": pl.Int64,
    "rank": pl.String, "rows": pl.String, "match": pl.String, "task": pl.String, "problem": pl.Int64, "correct": pl.Boolean,
    "text": pl.String, "tokens": pl.List(pl.Int64), "confidence": pl.Float64, "value": pl.Float64,
}  # fmt: skip
