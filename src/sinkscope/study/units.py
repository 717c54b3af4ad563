"""Units of work: the smallest pieces that are run, stored and never run again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sinkscope.errors import StudyError
from sinkscope.study.conditions import Condition, condition_from_dict
from sinkscope.study.plan import LEAST_STEPS, Study
from sinkscope.study.reader import LONGEST_NAME

KINDS = ("answers", "trace", "mechanism", "likelihood")
TRACED = 10  # problems a traced unit


@dataclass(frozen=True)
class Facts:
    """What the plan must know of a model, found by loading it once."""

    asked: str  # as the study names it
    name: str  # as results show it
    causal: bool
    family: str
    identity: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]  # label of a point of the sweep → Decode as a dict
    likelihood: bool = False  # measured by likelihood, not by answers

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Unit:
    """One piece: a chunk of problems of one task, under one condition, with one model and setting."""

    kind: str
    model: str  # as the study names it
    condition: Condition
    setting: str = ""
    task: str = ""
    first: int = 0
    last: int = 0  # problems [first, last) in the order of their length
    chunk: int = 0
    decode: Mapping[str, Any] = field(default_factory=dict)
    shown: str = ""  # the model as results show it

    @property
    def id(self) -> str:
        """A name for files; says everything that tells units of one study apart."""
        parts = (self.kind, self.shown, self.setting, self.condition.key, self.task, f"{self.chunk:03d}")
        return _cut("__".join(_safe(part) for part in parts if part))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "condition": self.condition.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Unit:
        return cls(**{**values, "condition": condition_from_dict(values["condition"])})


def units_of(study: Study, facts: list[Facts]) -> list[Unit]:
    """All units in the order in which they are run: a model at a time, what everything is compared with first."""
    units: list[Unit] = []
    for fact in facts:
        if not fact.likelihood:
            for setting in fact.settings:
                units += _answers(study, fact, setting)
                units += _mechanism(study, fact, setting)
        for setting in fact.settings:
            units += _traced(study, fact, setting)
        if fact.likelihood:
            units += [
                Unit("likelihood", fact.asked, condition, shown=fact.name, last=study.likelihood.texts)
                for condition in study.likelihood.conditions
            ]
    return units


def wanted(study: Study, fact: Facts) -> list[Condition]:
    """The study's conditions that are for this model."""
    kind = "causal" if fact.causal else "diffusion"
    return [condition for condition, models in study.conditions if models in ("all", kind)]


def _answers(study: Study, fact: Facts, setting: str) -> list[Unit]:
    return [
        Unit("answers", fact.asked, condition, setting, task.name, first, min(first + study.chunk, task.problems),
             index, fact.settings[setting], fact.name)
        for condition in wanted(study, fact)
        for task in study.tasks
        for index, first in enumerate(range(0, task.problems, study.chunk))
    ]  # fmt: skip


def _traced(study: Study, fact: Facts, setting: str) -> list[Unit]:
    names = ("none",) if fact.likelihood else study.trace.conditions
    return [
        Unit("trace", fact.asked, condition, setting, task.name, first, min(first + TRACED, study.trace.problems), index,
             fact.settings[setting], fact.name)
        for condition in wanted(study, fact)
        if condition.name in names
        for task in study.tasks
        for index, first in enumerate(range(0, study.trace.problems, TRACED))
    ]  # fmt: skip


def _mechanism(study: Study, fact: Facts, setting: str) -> list[Unit]:
    if fact.causal or not study.mechanism.problems or setting != next(iter(fact.settings)):
        return []
    steps = fact.settings[setting].get("steps")
    if steps is not None and steps < LEAST_STEPS:
        raise StudyError(
            f"The mechanism needs at least {LEAST_STEPS} steps, and {fact.name} decodes in {steps}; "
            "give decode more steps, or leave the mechanism out."
        )
    return [
        Unit("mechanism", fact.asked, Condition("mask_sinks", k, "clean", "all"), setting, task.name, first,
             min(first + study.chunk, study.mechanism.problems), index, fact.settings[setting], fact.name)
        for k in study.mechanism.k
        for task in study.tasks
        for index, first in enumerate(range(0, study.mechanism.problems, study.chunk))
    ]  # fmt: skip


def _cut(name: str) -> str:
    """A name that is too long for a file ends in a digest of the whole."""
    if len(name.encode()) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name.encode()[: LONGEST_NAME - len(digest) - 1].decode(errors='ignore')}-{digest}"


def _safe(part: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-._=" else "-" for sign in part)
