"""Units of work: the smallest pieces that are run, stored and never run again; and the kinds of them.

A kind is one file of this folder: it plans its units, performs one, checks its controls and counts its forwards.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from sinkscope.conditions import NONE, NOOP, Condition
from sinkscope.decoding.cost import CORE, Size, Workload, total_seconds
from sinkscope.decoding.settings import Decode
from sinkscope.errors import StudyError
from sinkscope.registry import Registry
from sinkscope.study.schema import LONGEST_FILE_NAME, Study, TaskPlan
from sinkscope.tracing.trace import single_threaded

UNIT_KINDS: Registry[UnitKind] = Registry("kind of unit", StudyError)
MODULES = ("worker", "accuracy", "mechanism", "trace", "shift", "likelihood")  # of this folder, which hold the kinds
Grade = Callable[[int, str], bool]  # number of a problem, text of an answer → whether it is right
Load = Callable[["Unit"], dict[str, Any]]  # a unit → its stored result
Rows = dict[str, list[Any]]  # name of a table of results.json → its rows
TYPICAL_PROMPT = 40  # tokens of a small problem


@dataclass(frozen=True)
class ModelInfo:
    """What the plan must know of a model, found by loading it once."""

    asked: str  # as the study names it
    name: str  # as results show it
    causal: bool
    family: str
    identity: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]  # label of a point of the sweep → Decode as a dict
    likelihood: bool = False  # measured by likelihood, not by answers
    traced_only: bool = False  # traced with nothing changed, and nothing else
    # Benchmark → label → settings, since a protocol has its own; and what its prompts and scores depend on.
    protocols: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    benchmarks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def answers(self) -> bool:
        """Whether it is asked problems under the study's conditions."""
        return not self.likelihood and not self.traced_only

    def settings_of(self, task: str, label: str) -> Mapping[str, Any]:
        """The decode settings at a point of the sweep."""
        return self.protocols.get(task, self.settings)[label]

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

    @functools.cached_property
    def id(self) -> str:
        """A name for files; says everything that tells units of one study apart."""
        parts = (self.kind, self.shown, self.setting, self.condition.key, self.task, f"{self.chunk:03d}")
        text = "__".join(part for part in parts if part)
        name = "".join(sign if sign.isalnum() or sign in "-._=" else "-" for sign in text)
        if len(name.encode()) <= LONGEST_FILE_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]  # of the whole
        return f"{name.encode()[: LONGEST_FILE_NAME - len(digest) - 1].decode(errors='ignore')}-{digest}"

    @functools.cached_property
    def decoder(self) -> Decode:
        """The decode settings, checked."""
        return Decode.from_dict(dict(self.decode))

    def to_dict(self) -> dict[str, Any]:
        # By hand: `asdict` copies every setting of the decoder, and a driver does this for thousands of units per second.
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**plain, "condition": self.condition.to_dict(), "decode": dict(self.decode)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Unit:
        return cls(**{**values, "condition": Condition.from_dict(values["condition"])})


@dataclass(frozen=True)
class Prompt:
    """A problem as a worker gets it."""

    number: int  # of the problem in its task
    text: str = ""  # for the model's own template; a prompt that is laid out already comes as ids
    ids: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()  # the answer ends before the first of them
    answer: str = ""  # the true one, where its likelihood is asked for


@dataclass(frozen=True)
class Job:
    """All that a worker sees of a unit beside the study: the driver draws problems and grades, a worker answers prompts."""

    unit: Unit
    prompts: tuple[Prompt, ...] = ()

    @property
    def id(self) -> str:
        return self.unit.id

    @property
    def kind(self) -> str:
        return self.unit.kind

    @property
    def model(self) -> str:
        return self.unit.model

    def to_dict(self) -> dict[str, Any]:
        return {"unit": self.unit.to_dict(), "prompts": [asdict(prompt) for prompt in self.prompts]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        prompts = [{**one, "ids": tuple(one["ids"]), "stops": tuple(one["stops"])} for one in values["prompts"]]
        return cls(Unit.from_dict(values["unit"]), tuple(Prompt(**one) for one in prompts))


class UnitKind(ABC):
    """One kind of unit; a subclass registers itself by its name."""

    name: ClassVar[str]
    order: ClassVar[int]  # kinds of one model are run in this order
    holds: ClassVar[str] = "rows"  # the list that a stored result must have
    unchanged: ClassVar[str | None] = None  # field of a row that must be the same when nothing is masked

    def __init_subclass__(cls) -> None:
        UNIT_KINDS.add(cls.name, cls())

    @abstractmethod
    def plan(self, study: Study, info: ModelInfo) -> list[Unit]:
        """The units that a model needs."""

    def count_problems(self, study: Study, task: TaskPlan) -> int:
        """How many problems of a task its units are cut from; 0 for a kind that asks none."""
        return 0

    @abstractmethod
    def perform(self, study: Study, job: Job, folder: Path) -> dict[str, Any]:
        """Run one unit on a worker: plain data that JSON holds exactly, and that depends on study and job alone."""

    def grade(self, found: dict[str, Any], right: Grade) -> dict[str, Any]:
        """What is stored of what a worker found; `right` judges answers, on the driver."""
        return found

    @abstractmethod
    def workload(self, study: Study, unit: Unit, info: ModelInfo, prompt: int) -> list[Workload]:
        """All forwards that `perform` makes, where a decoder may stop early the most that it makes; prompt: tokens."""

    def rows(self, study: Study, models: Mapping[str, ModelInfo], units: Sequence[Unit], load: Load) -> Rows:
        """The rows of results.json that units of this kind give; models by the names that results show."""
        return {}

    def complete(self, result: Any) -> bool:
        """Whether this is a result, not a piece of one."""
        return isinstance(result, dict) and isinstance(result.get(self.holds), list)

    def control_of(self, unit: Unit) -> Unit | None:
        """The unit that must give the same: of none the noop, of noop the none."""
        other = {NONE: NOOP, NOOP: NONE}.get(unit.condition)
        return None if self.unchanged is None or other is None else replace(unit, condition=other)

    def check(self, unit: Unit, result: dict[str, Any], control: dict[str, Any] | None) -> None:
        """A masked key must receive exactly nothing, and masking nothing must change nothing."""
        leak = result.get("effect", {}).get("leak", 0.0)
        if unit.condition.must_take_effect and leak != 0:
            raise StudyError(f"The control failed: masked keys received {leak:.3g}; report it with {unit.id}.")
        if result.get("effect", {}).get("moved") == 0 and unit.condition.get("at") != "sinks":  # there may be no sink
            raise StudyError(f"The control failed: no activation changed; report it with {unit.id}.")
        if control is None or self.unchanged is None:
            return
        before = {row["problem"]: row[self.unchanged] for row in control["rows"]}
        for row in result["rows"]:
            if row[self.unchanged] != before[row["problem"]]:
                what = f"the {self.unchanged} of problem {row['problem']}"
                raise StudyError(f"The control failed: masking nothing changed {what}; report it with {unit.id}.")


def kinds() -> dict[str, UnitKind]:
    """Every kind by its name, in the order in which they are run."""
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")
    return {name: UNIT_KINDS[name] for name in sorted(UNIT_KINDS, key=lambda name: UNIT_KINDS[name].order)}


def kind_of(unit: Unit | Job) -> UnitKind:
    kinds()
    return UNIT_KINDS[unit.kind]


def units_of(study: Study, models: Sequence[ModelInfo]) -> list[Unit]:
    """All units in the order in which they are run: a model at a time, what everything is compared with first."""
    return [unit for info in models for kind in kinds().values() for unit in kind.plan(study, info)]


@single_threaded  # so that any number of workers gives the same bits
def perform(study: Study, job: Job, folder: Path) -> dict[str, Any]:
    """Run one unit; every engine calls this; traces that are kept go to `folder`/traces."""
    return kind_of(job).perform(study, job, folder)


# ---- what several kinds plan and count with


def suits(models: str, info: ModelInfo) -> bool:
    """Whether what is for these models (all, causal, diffusion) is for this one."""
    return models in ("all", "causal" if info.causal else "diffusion")


def conditions_for(study: Study, info: ModelInfo) -> list[Condition]:
    """The study's conditions that are for this model; another seed only where answers depend on it."""
    found = [condition for condition in study.conditions if suits(condition.models, info)]
    if all(one.name != "other_seed" for one in found):
        return found
    settings = [info.settings_of(task.name, label) for task in study.tasks for label in info.settings]
    drawn = any(Decode.from_dict(dict(one)).is_stochastic for one in settings)
    return [one for one in found if drawn or one.name != "other_seed"]


def decoded_units(
    kind: str, study: Study, info: ModelInfo, conditions: Iterable[Condition], size: int, problems: int | None = None
) -> list[Unit]:
    """At every point of the sweep and under every condition, which may change it: each task's problems, so many at a time."""
    return [
        Unit(kind, info.asked, condition, setting, task.name, first, min(first + size, count), first // size,
             {**info.settings_of(task.name, setting), **condition.decode}, info.name)
        for setting in info.settings
        for condition in conditions
        for task in study.tasks
        for count in [task.limit(problems)]
        for first in range(0, count, size)
    ]  # fmt: skip


def weigh(study: Study, unit: Unit, info: ModelInfo | None) -> float:
    """About how many seconds a unit takes on one core: good for weighing units, not for promising anything.

    info: None as long as nothing is known of the model; its units weigh alike.
    """
    if info is None:
        return 1.0
    parameters = int(info.identity["parameters"])
    size = Size(parameters, parameters, int(info.identity["layers"]), int(info.identity["heads"]))
    work = kind_of(unit).workload(study, unit, info, TYPICAL_PROMPT)
    return total_seconds(work, lambda part: CORE.seconds(size, part))
