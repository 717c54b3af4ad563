"""From stored units to tables: every cell with its interval, paired with what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from sinkscope.errors import StudyError
from sinkscope.study import paper
from sinkscope.study.conditions import Condition
from sinkscope.study.plan import Study
from sinkscope.study.statistics import bootstrap, holm, paired, signed_rank, wilson
from sinkscope.study.units import Facts, Unit

Loaded = Callable[[Unit], dict[str, Any]]  # a unit's stored result
EFFECT = ("keys", "keys_seen", "mass", "mass_seen")


@dataclass
class Answers:
    """All answers of one model, setting, condition and task; by problem."""

    model: str
    setting: str
    condition: Condition
    task: str
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    effect: dict[str, float] = field(default_factory=lambda: {**dict.fromkeys(EFFECT, 0.0), "leak": 0.0})

    def add(self, result: dict[str, Any]) -> None:
        self.rows |= {row["problem"]: row for row in result["rows"]}
        for name in EFFECT:
            self.effect[name] += result["effect"].get(name, 0.0)
        self.effect["leak"] = max(self.effect["leak"], result["effect"].get("leak", 0.0))

    @property
    def right(self) -> list[bool]:
        """In the order of the problems."""
        return [bool(self.rows[number]["correct"]) for number in sorted(self.rows)]

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
    """Answers of all chunks together; problems of all tasks stand under the task "all" too, numbered on."""
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
        shift = tasks.index(task) * 1_000_000
        whole.rows |= {shift + number: row for number, row in one.rows.items()}
        for name in EFFECT:
            whole.effect[name] += one.effect[name]
        whole.effect["leak"] = max(whole.effect["leak"], one.effect["leak"])
    return found


def check_noop(baseline: dict[str, Any], noop: dict[str, Any], unit: Unit) -> None:
    """An intervention that masks nothing must give the very same tokens, problem by problem."""
    before = {row["problem"]: row["tokens"] for row in baseline["rows"]}
    for row in noop["rows"]:
        if row["tokens"] != before[row["problem"]]:
            raise StudyError(
                f"The control failed: masking nothing changed the answer of {unit.shown} to problem {row['problem']} of "
                f"{unit.task}; no difference in this run can be trusted, report it with {unit.id}."
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
    """One cell a model, task, setting and condition, in the order of the plan."""
    families = {fact.name: fact.family for fact in facts}
    made: list[dict[str, Any]] = []
    for (model, setting, task, condition), one in answers.items():
        right, base = one.right, answers[model, setting, task, Condition("none")]
        low, high = wilson(sum(right), len(right))
        against = paired(base.right, right, study.draws, study.seed)
        simple = not setting and condition.name in ("none", "mask_sinks") and not condition.above
        made.append(
            {
                "model": model, "family": families[model], "task": task, "setting": setting, "condition": condition.to_dict(),
                "label": condition.label, "n": len(right), "correct": sum(right), "accuracy": sum(right) / len(right),
                "low": low, "high": high, **against.to_dict(), "p_holm": against.p, **one.shares(),
                "confidence": sum(row["confidence"] for row in one.rows.values()) / len(one.rows),
                "controls": _controls(study, answers, one), "paper": None,
            }
        )  # fmt: skip
        if simple and condition.rows in (None, "last" if families[model] == "llama" else "all"):
            made[-1]["paper"] = paper.accuracy(families[model], task, condition.k)
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
            # As many random keys are as many, whichever rows ranked those that they must not be.
            ways = [(condition.rank, condition.rows), ("clean", condition.rows), ("clean", "last"), ("clean", "all")]
            names = [Condition("mask_random", condition.k, rank, rows, match) for rank, rows in ways]
        else:
            names = [Condition(condition.name, condition.k, condition.rank, condition.rows, of="random")]
        control = next(
            (answers[key] for name in names if (key := (one.model, one.setting, one.task, name)) in answers), None
        )
        if control is not None and (match == "count" or condition.name == "mask_sinks"):
            compared = paired(control.right, one.right, study.draws, study.seed)
            found[match] = {
                "accuracy": sum(control.right) / len(control.right),
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
    """Points of a decode sweep without intervention, each against the first, problem by problem."""
    firsts: dict[tuple[str, str], Answers] = {}
    rows = []
    for (model, setting, task, condition), one in answers.items():
        if condition.name != "none":
            continue
        first = firsts.setdefault((model, task), one)
        if first is not one:
            compared = paired(first.right, one.right, study.draws, study.seed)
            rows.append(
                {"model": model, "task": task, "setting": setting, "against": first.setting, **compared.to_dict()}
            )
    return rows


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
