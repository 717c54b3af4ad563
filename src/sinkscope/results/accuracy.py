"""Accuracy: every cell with its interval, paired with nothing masked and with its random controls."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from sinkscope import paper
from sinkscope.conditions import NONE, Condition
from sinkscope.results import series
from sinkscope.results.rows import Answered, Cell, Compared, Control, PairedDifference, PooledCell, SweepPoint
from sinkscope.statistics import adjusted, paired, wilson

Key = tuple[str, str, str, Condition]  # model, setting, task, condition
COUNTED = ("keys", "keys_seen", "mass", "mass_seen")
Tested = TypeVar("Tested", bound=Hashable)
Row = TypeVar("Row", bound=PairedDifference)
WEAK = 0.1  # accuracy with nothing masked below which a task has too little to lose


class ModelFacts(Protocol):
    """What a cell says of its model."""

    @property
    def family(self) -> str: ...
    @property
    def causal(self) -> bool: ...


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
        """What was removed, from the second forward on."""
        return removed_shares(sum_effects(chunk["effect"] for chunk in chunks) for chunks in self.tasks.values())


def sum_effects(effects: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Keys and attention that were there and that were removed, in all; the largest leak."""
    total = {**dict.fromkeys(COUNTED, 0.0), "leak": 0.0}
    for effect in effects:
        for name in COUNTED:
            total[name] += effect.get(name, 0.0)
        total["leak"] = max(total["leak"], effect.get("leak", 0.0))
    return total


def removed_shares(effects: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """What was removed as shares of what was there; None where nothing was counted."""
    effect = sum_effects(effects)
    return {
        "key_share": effect["keys"] / effect["keys_seen"] if effect["keys_seen"] else None,
        "mass_share": effect["mass"] / effect["mass_seen"] if effect["mass_seen"] else None,
        "leak": effect["leak"],
    }


def pool_tasks(answers: Mapping[Key, AnswerSet]) -> dict[Key, AnswerSet]:
    """The same with all tasks together, as the task "all"."""
    found: dict[Key, AnswerSet] = {}
    for (model, setting, _, condition), one in answers.items():
        found.setdefault((model, setting, "all", condition), AnswerSet()).tasks.update(one.tasks)
    return found


def cells(
    models: Mapping[str, ModelFacts], answers: dict[Key, AnswerSet], primary: Sequence[Condition] = ()
) -> list[Cell]:
    """One cell per model, task, setting and condition, in the order of the answers; models by name.

    primary: the comparisons that the study is about.
    """
    made = {key: _cell(models[key[0]], answers, key) for key in answers}
    families: dict[Hashable, list[Key]] = {}
    for key in made:
        if key[3].name not in ("none", "noop"):
            families.setdefault((*key[:3], key[3].series()), []).append(key)
    for family in families.values():  # across K (or the radius)
        _correct(made, family)
    return _with_primary(made, primary)


def _cell(model: ModelFacts, answers: dict[Key, AnswerSet], key: Key) -> Cell:
    name, setting, task, condition = key
    one, base = answers[key], answers[*key[:3], NONE]
    right, settings, shares = one.right, condition.to_dict(), one.shares()
    change = paired(base.right_at(one), right)
    low, high = wilson(sum(right), len(right))
    of_the_paper = not setting and series.is_of_the_paper(settings, model.family)
    share = shares["mass_share"]
    return Cell(
        model=name, family=model.family, causal=model.causal, task=task, setting=setting, condition=settings,
        label=condition.label, n=len(right), correct=sum(right), accuracy=one.accuracy, low=low, high=high,
        **vars(change), p_holm=change.p, **shares, controls=_controls(answers, key),
        confidence=mean_confidence(one.rows),
        paper=paper.accuracy(name, task, condition.k) if of_the_paper else None,
        per_percent=change.difference / share if share else None,
    )  # fmt: skip


def mean_confidence(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean confidence in what was committed; None of benchmarks, whose batches end at their stop strings."""
    values = [row["confidence"] for row in rows if row["confidence"] is not None]
    return sum(values) / len(values) if values else None


def _controls(answers: dict[Key, AnswerSet], key: Key) -> dict[Any, Control]:
    """Against the first control of each kind that was run, problem by problem."""
    found: dict[Any, Control] = {}
    for match, candidates in key[3].controls().items():
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


def _with_primary(made: dict[Key, Cell], primary: Sequence[Condition]) -> list[Cell]:
    """Corrected over all comparisons that the study is about; by default one masked sink against none.

    An ARM's sinks are those of its last row, as in the paper, where that was run.
    """
    masked = {key: series.masked_key(cell.condition) for key, cell in made.items()}
    by_last = {key[0] for key, what in masked.items() if what == ("last row's top key", None) and made[key].causal}
    usual = {model: ("last row's top key" if model in by_last else "top key", None) for model, *_ in made}
    chosen = [key for key in made if (key[3] in primary if primary else masked[key] == usual[key[0]])]
    p = adjusted({key: made[key].p for key in chosen})
    return [replace(cell, p_primary=p[key]) if key in p else cell for key, cell in made.items()]


def pooled_cells(
    models: Mapping[str, ModelFacts], answers: dict[Key, AnswerSet], primary: Sequence[Condition] = ()
) -> list[PooledCell]:
    """The same of pooled answers, each also over those tasks only that the model can do."""
    weak = {key: _weak(answers[*key[:3], NONE]) for key in answers}
    able = {
        key: one.only([task for task in one.tasks if task not in weak[key]])
        for key, one in answers.items() if len(weak[key]) < len(one.tasks)
    }  # fmt: skip
    names = [item.name for item in fields(Answered)]
    strong = {
        key: Answered(**{name: getattr(cell, name) for name in names})
        for key, cell in zip(able, cells(models, able, primary), strict=True)
    }
    return [
        PooledCell(**vars(row), weak=weak[key], able=strong.get(key))
        for key, row in zip(answers, cells(models, answers, primary), strict=True)
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


# ---- how far a condition moved the answers, whether or not they became wrong


METRICS = ("changed", "first_change", "reordered", "same_verdict", "kl", "flipped")
Record = Mapping[str, Any]  # a stored answer: text, tokens and, of a diffusion model, steps
CellName = tuple[str, str, str]  # model, task, label of the condition


def with_shifts(
    cells: Sequence[Cell],
    answers: Mapping[CellName, Mapping[int, Record]],
    divergences: Mapping[CellName, Sequence[Record]],
) -> list[Cell]:
    """The cells, each changed one with its shift; divergences: of the logits along the unmasked path, where measured."""
    shifts: dict[CellName, dict[str, Any]] = {}
    for cell in cells:
        key, base = (cell.model, cell.task, cell.label), answers.get((cell.model, cell.task, "none"))
        if cell.label != "none" and base and key in answers:
            measured = divergences.get(key, ())
            more = {name: mean([row[name] for row in measured]) for name in ("kl", "flipped")} if measured else {}
            shifts[key] = {**measure_shift(base, answers[key]), **more}
    return [_with_shift(cell, cells, shifts) for cell in cells]


def _with_shift(cell: Cell, cells: Sequence[Cell], shifts: Mapping[CellName, dict[str, Any]]) -> Cell:
    """Masked sinks also get the difference from as many random keys."""
    own = shifts.get((cell.model, cell.task, cell.label))
    if own is None:
        return cell
    control = next((one for one in cells if _is_random_control(one, cell)), None)
    random = None if control is None else shifts.get((control.model, control.task, control.label))
    if cell.condition["name"] == "mask_sinks" and random is not None:
        own = {**own, "minus_random": {name: _less(own.get(name), random.get(name)) for name in METRICS}}
    return replace(cell, shift=own)


def _is_random_control(one: Cell, cell: Cell) -> bool:
    """Whether it masks as many random keys in the same rows of the same model and task."""
    random = one.condition["name"] == "mask_random" and (one.model, one.task) == (cell.model, cell.task)
    return random and all(one.condition.get(name) == cell.condition.get(name) for name in ("k", "rows"))


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def measure_shift(base: Mapping[int, Record], own: Mapping[int, Record]) -> dict[str, Any]:
    """What changed in the answers, whether or not they became wrong: means over problems against the unmasked run.

    changed: share of the answer's tokens that are others, position by position, up to the end of the longer answer.
    first_change: where the first of them stands, as a share of the unmasked answer (1 where nothing changed).
    reordered: share of the pairs of positions that were committed in another order; diffusion models only.
    same_verdict: share of problems whose text changed though both answers are right, or both wrong.
    """
    pairs = [(base[number], own[number]) for number in own]
    rows = [_compare(before, after) for before, after in pairs]
    same = [a["text"] != b["text"] and a["correct"] == b["correct"] for a, b in pairs]
    found = {name: mean([row[name] for row in rows]) for name in ("changed", "first_change", "reordered")}
    return {"n": len(rows), **found, "same_verdict": mean(same)}


def _compare(before: Record, after: Record) -> dict[str, float | None]:
    a, b = list(before["tokens"]), list(after["tokens"])
    longest = max(len(a), len(b))
    other = [x != y for x, y in zip(a, b, strict=False)] + [True] * (longest - min(len(a), len(b)))
    first = other.index(True) if any(other) else longest
    return {
        "changed": sum(other) / longest if longest else 0.0,
        "first_change": min(first / len(a), 1.0) if a else float(not other),
        "reordered": _reordered(before.get("steps"), after.get("steps")),
    }


def _reordered(before: Sequence[int] | None, after: Sequence[int] | None) -> float | None:
    """Share of pairs of positions, in both answers, that changed places in the order of commits."""
    size = min(len(before or ()), len(after or ()))
    if before is None or after is None or size < 2:
        return None
    signs = [np.sign(np.subtract.outer(np.asarray(one[:size]), np.asarray(one[:size]))) for one in (before, after)]
    pairs = np.triu_indices(size, 1)
    return float((signs[0] * signs[1] < 0)[pairs].mean())


def mean(values: Sequence[float | bool | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
