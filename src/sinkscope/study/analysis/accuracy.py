"""Table 1: every cell with its interval, paired with nothing masked and with random keys; points of a sweep compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sinkscope import paper
from sinkscope.interventions.conditions import Condition
from sinkscope.statistics import holm, paired, wilson
from sinkscope.study.analysis.answers import Answers, Key
from sinkscope.study.analysis.rows import Cell, Compared, Control, PooledCell, Setting, SolvableTasks
from sinkscope.study.schema import Study
from sinkscope.study.unit import ModelInfo

CONTROLLED = ("mask_sinks", "zero_values", "mean_values", "patch_values", "patch_keys")  # have a twin of random keys
WEAK = 0.1  # accuracy with nothing masked below which a task has too little to lose


def cells(study: Study, facts: Sequence[ModelInfo], answers: dict[Key, Answers]) -> list[Cell]:
    """One cell per model, task, setting and condition, in the order of the plan."""
    known = {fact.name: fact for fact in facts}
    made = [_cell(known[key[0]], answers, one) for key, one in answers.items()]
    return _primary(study, _corrected(made, answers), list(answers))


def pooled_cells(study: Study, facts: Sequence[ModelInfo], answers: dict[Key, Answers]) -> list[PooledCell]:
    """The same of pooled answers, each also over those tasks only that the model can do."""
    weak = {key: _weak(answers[*key[:3], Condition("none")]) for key in answers}
    able = {
        key: one.only([task for task in one.parts if task not in weak[key]])
        for key, one in answers.items() if len(weak[key]) < len(one.parts)
    }  # fmt: skip
    strong = dict(zip(able, cells(study, facts, able), strict=True))
    return [
        PooledCell(**vars(row), weak=weak[key], able=_able(strong[key]) if key in strong else None)
        for key, row in zip(answers, cells(study, facts, answers), strict=True)
    ]


def _able(cell: Cell) -> SolvableTasks:
    return SolvableTasks(**{name: getattr(cell, name) for name in SolvableTasks.__dataclass_fields__})


def _weak(base: Answers, other: Answers | None = None) -> dict[str, float]:
    """Tasks that the model can hardly do, with the share of right answers (the larger one, of two)."""
    shares = {
        task: max(part.accuracy, other.parts[task].accuracy if other else 0.0) for task, part in base.parts.items()
    }
    return {task: share for task, share in shares.items() if share < WEAK}


def _cell(fact: ModelInfo, answers: dict[Key, Answers], one: Answers) -> Cell:
    condition, right = one.condition, one.right
    base = answers[one.model, one.setting, one.task, Condition("none")]
    low, high = wilson(sum(right), len(right))
    simple = not one.setting and set(condition.to_dict()) == {"name", "k", "rank", "rows"}  # as the paper masks
    theirs = (None, "last" if fact.family == "llama" else "all")
    told = simple and condition.name in ("none", "mask_sinks") and condition.rows in theirs
    against, shares = paired(base.right, right), one.shares()
    taken = shares["mass_share"]
    return Cell(
        model=one.model, family=fact.family, causal=fact.causal, task=one.task, setting=one.setting,
        condition=condition.to_dict(), label=condition.label, n=len(right), correct=sum(right), accuracy=one.accuracy,
        low=low, high=high, **against.to_dict(), p_holm=against.p, **shares,
        confidence=sum(row["confidence"] for row in one.rows.values()) / len(one.rows),
        controls=_controls(answers, one), paper=paper.accuracy(fact.family, one.task, condition.k) if told else None,
        per_percent=against.difference / taken if taken else None,
    )  # fmt: skip


def _controls(answers: dict[Key, Answers], one: Answers) -> dict[Any, Control]:
    """Sinks against random keys with the same budget, in both forms; problem by problem."""
    condition = one.condition
    if condition.name not in CONTROLLED or condition.of == "random":
        return {}
    words = dict(condition.settings)
    found: dict[Any, Control] = {}
    for match in ("count", "mass"):
        if condition.name == "mask_sinks":
            names = [Condition("mask_random", **{**words, "match": match})]
            if match == "count" and not {"above", "below"} & set(words):
                # As many random keys are as many, whichever rows ranked those that they must not be; but the mass to
                # match is that of the sinks of this very ranking.
                ways = [("clean", condition.rows), ("clean", "last"), ("clean", "all")]
                names += [Condition("mask_random", condition.k, rank, rows, match) for rank, rows in ways]
        else:
            names = [Condition(condition.name, **{**words, "of": "random"})]
        control = next(
            (answers[key] for name in names if (key := (one.model, one.setting, one.task, name)) in answers), None
        )
        if control is not None and (match == "count" or condition.name == "mask_sinks"):
            compared = paired(control.right, one.right)
            found[match] = Control(accuracy=control.accuracy, **compared.to_dict(), **control.shares())
    return found


def _corrected(made: list[Cell], answers: dict[Key, Answers]) -> list[Cell]:
    """Holm's correction across K (or the radius), a model, task, setting and kind of masking at a time."""
    groups: dict[Any, list[int]] = {}
    for index, (model, setting, task, condition) in enumerate(answers):
        if condition.name not in ("none", "noop"):
            groups.setdefault((model, setting, task, condition.series().label), []).append(index)
    for members in groups.values():
        for index, p in _adjusted({index: made[index].p for index in members}):
            made[index] = replace(made[index], p_holm=p)
        for match in ("count", "mass"):
            compared = {index: made[index].controls for index in members if match in made[index].controls}
            for index, p in _adjusted({index: controls[match].p for index, controls in compared.items()}):
                controls = compared[index]
                made[index] = replace(made[index], controls={**controls, match: replace(controls[match], p_holm=p)})
    return made


def _adjusted(p: Mapping[int, float]) -> Iterable[tuple[int, float]]:
    """p values that are tested together, adjusted, each with what it belongs to; the one place that names the correction."""
    return zip(p, holm(list(p.values())), strict=True)


def _primary(study: Study, made: list[Cell], keys: list[Key]) -> list[Cell]:
    """Holm's correction over all comparisons that the study is about; by default one masked sink against none.

    An ARM's sinks are those of its last row, as in the paper, where that was run.
    """
    last, column = (Condition("mask_sinks", 1, "clean", rows) for rows in ("last", "all"))
    there = {(key[0], key[3]) for key in keys}
    chosen = [
        index for index, (model, _, _, condition) in enumerate(keys)
        if (condition in study.primary if study.primary else
            condition == (last if made[index].causal and (model, last) in there else column))
    ]  # fmt: skip
    for index, p in _adjusted({index: made[index].p for index in chosen}):
        made[index] = replace(made[index], p_primary=p)
    return made


def settings_compared(answers: dict[Key, Answers]) -> list[Setting]:
    """Points of a decode sweep without intervention, each against the first, problem by problem; Holm over the points."""
    firsts: dict[tuple[str, str], Answers] = {}
    groups: dict[tuple[str, str], list[int]] = {}
    rows: list[Setting] = []
    for (model, setting, task, condition), one in answers.items():
        if condition.name != "none":
            continue
        first = firsts.setdefault((model, task), one)
        if first is not one:
            weak = _weak(first, one)
            compared = paired(first.right, one.right)
            groups.setdefault((model, task), []).append(len(rows))
            rows.append(Setting(
                model, task, setting, first.setting, **compared.to_dict(), weak=weak, able=_able_pair(first, one, weak)
            ))  # fmt: skip
    for members in groups.values():
        for index, p in _adjusted({index: rows[index].p for index in members}):
            rows[index] = replace(rows[index], p_holm=p)
        able = {index: found for index in members if (found := rows[index].able) is not None}
        for index, p in _adjusted({index: found.p for index, found in able.items()}):
            rows[index] = replace(rows[index], able=replace(able[index], p_holm=p))
    return rows


def _able_pair(first: Answers, one: Answers, weak: dict[str, float]) -> Compared | None:
    """The comparison on those tasks that the model can do in one of the two settings; None without such a task."""
    tasks = [task for task in one.parts if task not in weak]
    if not tasks:
        return None
    before, after = first.only(tasks).right, one.only(tasks).right
    return Compared(n=len(after), **paired(before, after).to_dict())
