"""From stored units to tables: every cell with its interval, paired with what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from sinkscope import paper
from sinkscope.errors import StudyError
from sinkscope.statistics import bootstrap, holm, paired, signed_rank, wilson
from sinkscope.study.conditions import Condition
from sinkscope.study.plan import Study
from sinkscope.study.units import Facts, Unit

Loaded = Callable[[Unit], dict[str, Any]]  # a unit's stored result
EFFECT = ("keys", "keys_seen", "mass", "mass_seen")
WEAK = 0.1  # accuracy with nothing masked below which a task has too little to lose
ABLE = (
    "n", "correct", "accuracy", "low", "high", "difference", "difference_low", "difference_high", "p", "p_holm", "lost",
    "won", "key_share", "mass_share", "controls",
)  # fmt: skip


@dataclass
class Answers:
    """All answers of one model, setting, condition and task; by problem."""

    model: str
    setting: str
    condition: Condition
    task: str
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    effect: dict[str, float] = field(default_factory=lambda: {**dict.fromkeys(EFFECT, 0.0), "leak": 0.0})
    parts: dict[str, Answers] = field(default_factory=dict)  # of pooled answers: each task's own

    def add(self, result: dict[str, Any]) -> None:
        self.rows |= {row["problem"]: row for row in result["rows"]}
        self._took(result["effect"])

    def _took(self, effect: dict[str, float]) -> None:
        for name in EFFECT:
            self.effect[name] += effect.get(name, 0.0)
        self.effect["leak"] = max(self.effect["leak"], effect.get("leak", 0.0))

    def join(self, one: Answers, place: int) -> None:
        """Take in another task's answers; its problems are numbered on, by the task's place."""
        self.parts[one.task] = one
        self.rows |= {place * 1_000_000 + number: row for number, row in one.rows.items()}
        self._took(one.effect)

    def only(self, tasks: Sequence[str]) -> Answers:
        """Of pooled answers, those to some of the tasks."""
        found = Answers(self.model, self.setting, self.condition, self.task)
        for place, task in enumerate(tasks):
            found.join(self.parts[task], place)
        return found

    @property
    def right(self) -> list[bool]:
        """In the order of the problems."""
        return [bool(self.rows[number]["correct"]) for number in sorted(self.rows)]

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)

    def shares(self) -> dict[str, float | None]:
        """What was taken away, from the second forward on; None where nothing was counted."""
        effect = self.effect
        return {
            "key_share": effect["keys"] / effect["keys_seen"] if effect["keys_seen"] else None,
            "mass_share": effect["mass"] / effect["mass_seen"] if effect["mass_seen"] else None,
            "leak": effect["leak"],
        }


Key = tuple[str, str, str, Condition]  # model, setting, task, condition


def collect(units: Sequence[Unit], load: Loaded) -> dict[Key, Answers]:
    """Answers of all chunks together."""
    found: dict[Key, Answers] = {}
    for unit in units:
        if unit.kind != "answers":
            continue
        key = (unit.shown, unit.setting, unit.task, unit.condition)
        found.setdefault(key, Answers(unit.shown, unit.setting, unit.condition, unit.task)).add(load(unit))
    return found


def pooled(answers: dict[Key, Answers], tasks: Sequence[str]) -> dict[Key, Answers]:
    """The same with all tasks together, as the task "all"."""
    found: dict[Key, Answers] = {}
    for (model, setting, task, condition), one in answers.items():
        whole = found.setdefault((model, setting, "all", condition), Answers(model, setting, condition, "all"))
        whole.join(one, tasks.index(task))
    return found


def check_noop(baseline: dict[str, Any], noop: dict[str, Any], unit: Unit) -> None:
    """An intervention that masks nothing must give the very same tokens, or likelihoods, problem by problem."""
    kept = "value" if unit.kind == "likelihood" else "tokens"
    before = {row["problem"]: row[kept] for row in baseline["rows"]}
    for row in noop["rows"]:
        if row[kept] != before[row["problem"]]:
            what = "the likelihood of text" if unit.kind == "likelihood" else f"the answer to a problem of {unit.task},"
            raise StudyError(
                f"The control failed: masking nothing changed {what} number {row['problem']}, of {unit.shown}; no difference "
                f"in this run can be trusted, report it with {unit.id}."
            )


def check_effect(result: dict[str, Any], unit: Unit) -> None:
    """A masked key must receive exactly nothing."""
    leak = result.get("effect", {}).get("leak", 0.0)
    if unit.condition.must_take_effect and leak != 0:
        raise StudyError(
            f"The control failed: masked keys of {unit.shown} still received {leak:.3g} of attention under "
            f"{unit.condition.label}; masking did not take effect, report it with {unit.id}."
        )


def cells(study: Study, facts: Sequence[Facts], answers: dict[Key, Answers]) -> list[dict[str, Any]]:
    """One cell a model, task, setting and condition, in the order of the plan; pooled ones also without weak tasks."""
    made = _cells(study, facts, answers)
    weak = {key: _weak(answers[*key[:3], Condition("none")]) for key, one in answers.items() if one.parts}
    able = {
        key: answers[key].only([task for task in answers[key].parts if task not in left])
        for key, left in weak.items() if len(left) < len(answers[key].parts)
    }  # fmt: skip
    strong = dict(zip(able, _cells(study, facts, able), strict=True))
    for key, row in zip(answers, made, strict=True):
        if key in weak:
            row["weak"] = weak[key]
            row["able"] = {name: strong[key][name] for name in ABLE} if key in strong else None
    return made


def _weak(base: Answers, other: Answers | None = None) -> dict[str, float]:
    """Tasks that the model can hardly do, with the share of right answers (the larger one, of two)."""
    shares = {
        task: max(part.accuracy, other.parts[task].accuracy if other else 0.0) for task, part in base.parts.items()
    }
    return {task: share for task, share in shares.items() if share < WEAK}


def _cells(study: Study, facts: Sequence[Facts], answers: dict[Key, Answers]) -> list[dict[str, Any]]:
    known = {fact.name: fact for fact in facts}
    made: list[dict[str, Any]] = []
    for (model, setting, task, condition), one in answers.items():
        family, causal = known[model].family, known[model].causal
        right, base = one.right, answers[model, setting, task, Condition("none")]
        low, high = wilson(sum(right), len(right))
        against = paired(base.right, right, study.draws, study.seed)
        simple = not setting and condition.name in ("none", "mask_sinks") and not condition.above
        made.append(
            {
                "model": model, "family": family, "causal": causal, "task": task, "setting": setting,
                "condition": condition.to_dict(), "label": condition.label, "n": len(right), "correct": sum(right),
                "accuracy": one.accuracy, "low": low, "high": high, **against.to_dict(), "p_holm": against.p, **one.shares(),
                "confidence": sum(row["confidence"] for row in one.rows.values()) / len(one.rows),
                "controls": _controls(study, answers, one), "paper": None,
            }
        )  # fmt: skip
        if simple and condition.rows in (None, "last" if family == "llama" else "all"):
            made[-1]["paper"] = paper.accuracy(family, task, condition.k)
    _correct(made, answers)
    return made


def _controls(study: Study, answers: dict[Key, Answers], one: Answers) -> dict[str, Any]:
    """Sinks against random keys with the same budget, in both forms; problem by problem."""
    condition = one.condition
    if condition.name not in ("mask_sinks", "zero_values", "mean_values") or condition.of == "random":
        return {}
    found = {}
    for match in ("count", "mass"):
        if condition.name == "mask_sinks":
            ways = [(condition.rank, condition.rows)]
            if match == "count":
                # As many random keys are as many, whichever rows ranked those that they must not be; but the mass to
                # match is that of the sinks of this very ranking.
                ways += [("clean", condition.rows), ("clean", "last"), ("clean", "all")]
            names = [Condition("mask_random", condition.k, rank, rows, match) for rank, rows in ways]
        else:
            names = [Condition(condition.name, condition.k, condition.rank, condition.rows, of="random")]
        control = next(
            (answers[key] for name in names if (key := (one.model, one.setting, one.task, name)) in answers), None
        )
        if control is not None and (match == "count" or condition.name == "mask_sinks"):
            compared = paired(control.right, one.right, study.draws, study.seed)
            found[match] = {
                "accuracy": control.accuracy,
                **compared.to_dict(),
                **control.shares(),
            }
    return found


def _correct(made: list[dict[str, Any]], answers: dict[Key, Answers]) -> None:
    """Holm's correction across K (or the radius), a model, task, setting and kind of masking at a time."""
    groups: dict[Any, list[int]] = {}
    for index, (model, setting, task, condition) in enumerate(answers):
        if condition.name not in ("none", "noop"):
            groups.setdefault((model, setting, task, condition.series().label), []).append(index)
    for members in groups.values():
        for index, p in zip(members, holm([made[index]["p"] for index in members]), strict=True):
            made[index]["p_holm"] = p
        for match in ("count", "mass"):
            compared = [index for index in members if match in made[index]["controls"]]
            adjusted = holm([made[index]["controls"][match]["p"] for index in compared])
            for index, p in zip(compared, adjusted, strict=True):
                made[index]["controls"][match]["p_holm"] = p


def settings_compared(study: Study, answers: dict[Key, Answers]) -> list[dict[str, Any]]:
    """Points of a decode sweep without intervention, each against the first, problem by problem; Holm over the points."""
    firsts: dict[tuple[str, str], Answers] = {}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    rows = []
    for (model, setting, task, condition), one in answers.items():
        if condition.name != "none":
            continue
        first = firsts.setdefault((model, task), one)
        if first is not one:
            compared = paired(first.right, one.right, study.draws, study.seed)
            row = {"model": model, "task": task, "setting": setting, "against": first.setting, **compared.to_dict()}
            weak = _weak(first, one)
            rows.append({**row, "weak": weak, "able": _able_pair(study, first, one, weak)})
            groups.setdefault((model, task), []).append(rows[-1])
    for group in groups.values():
        for members in (group, [row["able"] for row in group if row["able"] is not None]):
            for row, p in zip(members, holm([row["p"] for row in members]), strict=True):
                row["p_holm"] = p
    return rows


def _able_pair(study: Study, first: Answers, one: Answers, weak: dict[str, float]) -> dict[str, Any] | None:
    """The comparison on those tasks that the model can do in one of the two settings; None without such a task."""
    tasks = [task for task in one.parts if task not in weak]
    if not tasks:
        return None
    before, after = first.only(tasks).right, one.only(tasks).right
    return {"n": len(after), **paired(before, after, study.draws, study.seed).to_dict()}


def likelihoods(study: Study, units: Sequence[Unit], load: Loaded) -> list[dict[str, Any]]:
    """Mean log-likelihood a token under each condition, and what the condition costs, paired text by text (nats)."""
    found = {(unit.shown, unit.condition): load(unit) for unit in units if unit.kind == "likelihood"}
    rows = []
    for (model, condition), result in found.items():
        base = found[model, Condition("none")]
        before, after = ([row["value"] for row in one["rows"]] for one in (base, result))
        change = [b - a for a, b in zip(before, after, strict=True)]
        low, high = bootstrap(change, study.draws, study.seed)
        mean_low, mean_high = bootstrap(after, study.draws, study.seed)
        one = Answers(model, "", condition, "")
        one.add({"rows": [], "effect": result["effect"]})
        rows.append(
            {
                "model": model, "condition": condition.to_dict(), "label": condition.label, "n": len(after),
                "tokens": result["tokens"] * len(after), "unit": "nats a token", "value": sum(after) / len(after),
                "low": mean_low, "high": mean_high, "difference": sum(change) / len(change), "difference_low": low,
                "difference_high": high, "p": signed_rank(change), **one.shares(),
            }
        )  # fmt: skip
    return rows


def table(units: Sequence[Unit], load: Loaded) -> pl.DataFrame:
    """Everything that was answered or scored, a row a problem, in the order of the plan."""
    rows = []
    for unit in units:
        if unit.kind not in ("answers", "likelihood"):
            continue
        about = {
            "kind": unit.kind, "model": unit.shown, "setting": unit.setting, "condition": unit.condition.label,
            **{name: getattr(unit.condition, name) for name in ("name", "k", "rank", "rows", "match")}, "task": unit.task,
        }  # fmt: skip
        rows += [{**about, **row} for row in sorted(load(unit)["rows"], key=lambda row: int(row["problem"]))]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


SCHEMA: dict[str, Any] = {
    "kind": pl.String, "model": pl.String, "setting": pl.String, "condition": pl.String, "name": pl.String, "k": pl.Int64,
    "rank": pl.String, "rows": pl.String, "match": pl.String, "task": pl.String, "problem": pl.Int64, "correct": pl.Boolean,
    "text": pl.String, "tokens": pl.List(pl.Int64), "confidence": pl.Float64, "value": pl.Float64,
}  # fmt: skip
