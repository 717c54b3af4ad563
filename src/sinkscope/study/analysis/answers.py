"""Stored answers put together: by model, setting, condition and task, and with all tasks as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from sinkscope.interventions.conditions import Condition
from sinkscope.study.unit import Unit

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

    def shares(self) -> dict[str, Any]:
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


def table(units: Sequence[Unit], load: Loaded) -> pl.DataFrame:
    """Everything that was answered or scored, one row per problem, in the order of the plan."""
    rows = []
    for unit in units:
        if unit.kind not in ("answers", "likelihood", "forced"):
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
