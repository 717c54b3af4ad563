"""`Study`: what is run, as one frozen value that is read from a YAML file and written back, resolved."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sinkscope.errors import RuleError, StudyError
from sinkscope.study.conditions import MODELS, Condition, read_condition
from sinkscope.study.reader import Fields, among, number, parse, text, texts, whole

STUDIES = Path(__file__).parent / "studies"
DEFAULT_RULE = {"rule": "threshold", "epsilon": 3.0, "unit": "uniform"}


@dataclass(frozen=True)
class TaskPlan:
    """Problems of one kind."""

    name: str
    problems: int
    difficulty: int | None = None


@dataclass(frozen=True)
class TracePlan:
    """What is traced: so many problems a task, of which the first `keep` are saved whole."""

    problems: int = 0
    keep: int = 1
    conditions: tuple[str, ...] = ("none",)  # names of conditions under which traces are taken
    epsilons: tuple[float, ...] = ()  # the share of non-sinks is measured at each, in both units
    norms: bool = True


@dataclass(frozen=True)
class MechanismPlan:
    """Confidence and commit delay where tokens depended on the masked sinks."""

    problems: int = 0
    k: tuple[int, ...] = (1, 5)


@dataclass(frozen=True)
class LikelihoodPlan:
    """Models that are measured by the likelihood of held-out text; those not installed are skipped with a word."""

    models: tuple[str, ...] = ()
    texts: int = 8
    read: int = 48  # tokens read at once, before the masking begins
    scored: int = 48  # tokens whose likelihood counts, one a step
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Study:
    """One study. `decode` holds words on top of each model's defaults; a list in it is a sweep."""

    name: str
    models: tuple[str, ...]
    tasks: tuple[TaskPlan, ...]
    conditions: tuple[tuple[Condition, str], ...]  # with the kind of models it is for: all, causal, diffusion
    about: str = ""
    seed: int = 0
    split: str = "test"
    chunk: int = 25
    decode: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[Mapping[str, Any], ...] = (DEFAULT_RULE,)
    trace: TracePlan = TracePlan()
    mechanism: MechanismPlan = MechanismPlan()
    likelihood: LikelihoodPlan = LikelihoodPlan()
    draws: int = 2000  # of every bootstrap
    dtype: str | None = None
    device: str | None = None

    @classmethod
    def load(cls, name: str | Path) -> Study:
        """A shipped study by its name, or a YAML file."""
        path = Path(name)
        if path.suffix not in (".yaml", ".yml") or not (path.is_file() or (STUDIES / path.name).is_file()):
            path = STUDIES / f"{name}.yaml"
            if not path.is_file():
                raise StudyError(
                    f"Expected a study file or one of the shipped studies ({', '.join(shipped())}), got {str(name)!r}."
                )
        path = path if path.is_file() else STUDIES / path.name
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StudyError(f"{path} cannot be read ({type(error).__name__}); name a YAML file in UTF-8.") from None
        return read_study(*parse(source, path.name), where=path.name)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Study:
        """A study of the values that a file would hold."""
        return read_study(values, {}, where="the study")

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain YAML values; `from_dict` gives the same study back."""
        plain = {
            name: getattr(self, name)
            for name in ("name", "about", "seed", "split", "chunk", "draws", "dtype", "device")
        }
        return {
            **plain,
            "models": list(self.models),
            "tasks": [asdict(task) for task in self.tasks],
            "decode": dict(self.decode),
            "conditions": [_condition_entry(condition, models) for condition, models in self.conditions],
            "rules": [dict(rule) for rule in self.rules],
            "trace": {name: _plain(value) for name, value in asdict(self.trace).items()},
            "mechanism": {name: _plain(value) for name, value in asdict(self.mechanism).items()},
            "likelihood": {
                **{name: _plain(value) for name, value in asdict(self.likelihood).items()},
                "conditions": [_condition_entry(condition) for condition in self.likelihood.conditions],
            },
        }

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)

    def settings(self) -> list[tuple[str, dict[str, Any]]]:
        """Every point of the decode sweep: a label (empty where nothing is swept) and the words."""
        names = list(self.decode)
        values = [value if isinstance(value, list) else [value] for value in self.decode.values()]
        swept = [name for name in names if isinstance(self.decode[name], list)]
        points = [dict(zip(names, point, strict=True)) for point in itertools.product(*values)]
        return [(", ".join(f"{name}={_shown(point[name])}" for name in swept), point) for point in points]

    def changed(
        self, models: Sequence[str] | None = None, problems: int | None = None, tasks: Sequence[str] | None = None,
        seed: int | None = None, **more: Any,
    ) -> Study:  # fmt: skip
        """The same study on other models, on other tasks, or with another number of problems."""
        changes: dict[str, Any] = {name: value for name, value in more.items() if value is not None}
        if models is not None:
            likely = tuple(name for name in self.likelihood.models if name in models)
            changes["likelihood"] = dataclasses.replace(self.likelihood, models=likely)
            changes["models"] = tuple(name for name in models if name not in likely)
        if seed is not None:
            changes["seed"] = seed
        wanted = self.tasks
        if tasks is not None:
            known = {task.name: task for task in self.tasks}
            size = self.tasks[0].problems
            wanted = tuple(known.get(name, TaskPlan(name, size)) for name in tasks)
        if problems is not None:
            wanted = tuple(dataclasses.replace(task, problems=problems) for task in wanted)
        made = dataclasses.replace(self, tasks=wanted, **changes)
        return Study.from_dict(made.to_dict())  # checked like a file


def shipped() -> list[str]:
    """The studies that come with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def read_study(values: Any, lines: Mapping[Any, int], where: str) -> Study:
    """Check every field; the first mistake is told in one sentence."""
    given = Fields(values, where, lines)
    known = [item.name for item in dataclasses.fields(Study)]
    name = given.need("name", text, "a word")
    names = given.need("models", lambda value: value == [] or texts(value), "a list of zoo names, folders or Hub ids")
    models = tuple(names)
    if len(set(models)) < len(models):
        raise given.error("models", "must name each model once")
    plain = {
        "about": given.take("about", "", lambda value: isinstance(value, str), "a sentence"),
        "seed": given.take("seed", 0, whole(0), "a whole number of at least 0"),
        "split": given.take("split", "test", among(("train", "validation", "test")), "train, validation or test"),
        "chunk": given.take("chunk", 25, whole(1), "a whole number of at least 1"),
        "draws": given.take("draws", 2000, whole(100), "a whole number of at least 100"),
        "dtype": given.take("dtype", None, lambda value: value is None or text(value), "a dtype such as bfloat16"),
        "device": given.take("device", None, lambda value: value is None or text(value), "a device such as cuda"),
    }
    study = Study(
        name=name, models=models, tasks=_tasks(given), conditions=_conditions(given), decode=_decode(given),
        rules=_rules(given), trace=_trace(given), mechanism=_mechanism(given), likelihood=_likelihood(given), **plain,
    )  # fmt: skip
    given.done(known)
    if not study.models and not study.likelihood.models:
        raise given.error("models", "must name at least one model")
    traced = set(study.trace.conditions) - {condition.name for condition, _ in study.conditions}
    if study.trace.problems and traced:
        raise given.error("trace", f"names the condition {min(traced)}, which the study does not have")
    return study


def _entries(given: Fields, field: str, expected: str) -> list[Fields]:
    """A list of mappings; a plain word stands for a mapping with that name."""
    values = given.need(field, lambda value: isinstance(value, list) and bool(value), expected)
    entries = [{"name": value} if isinstance(value, str) else value for value in values]
    return [given.inner(field, value, index) for index, value in enumerate(entries)]


def _tasks(given: Fields) -> tuple[TaskPlan, ...]:
    from sinkscope.tasks import registered

    found: list[TaskPlan] = []
    for entry in _entries(given, "tasks", "a list of tasks, each {name: …, problems: …}"):
        name = entry.need("name", among(registered()), f"one of {', '.join(registered())}")
        problems = entry.need("problems", whole(1), "a whole number of at least 1")
        level = entry.take("difficulty", None, among((None, 1, 2, 3)), "1, 2 or 3")
        entry.done(("name", "problems", "difficulty"))
        if any(name == task.name for task in found):
            raise entry.error("name", f"must not stand there twice, {name} does")
        found.append(TaskPlan(name, problems, level))
    return tuple(found)


def _conditions(given: Fields) -> tuple[tuple[Condition, str], ...]:
    expected = "a list of conditions, each a name or {name: …, k: …}"
    found = [pair for entry in _entries(given, "conditions", expected) for pair in read_condition(entry)]
    names = [condition for condition, _ in found]
    if Condition("none") not in names:
        raise given.error("conditions", "must have none among them, since everything is compared with it")
    for condition, models in found:
        same = [other for other in found if other[0] == condition]
        if len(same) > 1 and (models == "all" or sum(other[1] == models for other in same) > 1):
            raise given.error("conditions", f"must not have {condition.label!r} twice")
    order = {"none": 0, "noop": 1}
    return tuple(sorted(found, key=lambda pair: order.get(pair[0].name, 2)))


def _decode(given: Fields) -> dict[str, Any]:
    from sinkscope.decoding.settings import Decode

    words = given.take("decode", {}, lambda value: isinstance(value, dict), "a mapping of decode settings")
    known = {item.name for item in dataclasses.fields(Decode)} | {"algorithm"}
    inner = given.inner("decode", words)
    for name, value in words.items():
        if name not in known:
            raise inner.error(name, f"is no decode setting; known are {', '.join(sorted(known))}")
        if isinstance(value, dict) or value == []:
            raise inner.error(name, f"must be one value, or a list of values to sweep, not {value!r}")
    return dict(words)


def _rules(given: Fields) -> tuple[Mapping[str, Any], ...]:
    from sinkscope.sinks.rules import rule_from_dict

    values = given.take(
        "rules", [DEFAULT_RULE], lambda value: isinstance(value, list) and bool(value), "a list of rules"
    )
    found = []
    for index, value in enumerate(values):
        entry = given.inner("rules", value, index)
        try:
            found.append(rule_from_dict(value).to_dict())
        except (RuleError, TypeError) as error:
            raise entry.error("", f"is no sink rule: {str(error).rstrip('.')}") from None
    return tuple(found)


def _trace(given: Fields) -> TracePlan:
    if "trace" not in given.left:
        return TracePlan()
    entry = given.inner("trace", given.left.pop("trace"))
    names = entry.take("conditions", ["none"], texts, "a list of names of conditions")
    epsilons = entry.take(
        "epsilons",
        [],
        lambda value: isinstance(value, list) and all(map(number(0, 1e9), value)),
        "a list of numbers ≥ 0",
    )
    plan = TracePlan(
        problems=entry.need("problems", whole(0), "a whole number of at least 0"),
        keep=entry.take("keep", 1, whole(0), "a whole number of at least 0"),
        conditions=tuple(names),
        epsilons=tuple(float(value) for value in epsilons),
        norms=entry.take("norms", True, lambda value: isinstance(value, bool), "true or false"),
    )
    entry.done([item.name for item in dataclasses.fields(TracePlan)])
    return plan


def _mechanism(given: Fields) -> MechanismPlan:
    if "mechanism" not in given.left:
        return MechanismPlan()
    entry = given.inner("mechanism", given.left.pop("mechanism"))
    ks = entry.take(
        "k", [1, 5], lambda value: isinstance(value, list) and bool(value) and all(map(whole(1), value)),
        "a list of whole numbers of at least 1",
    )  # fmt: skip
    plan = MechanismPlan(entry.need("problems", whole(0), "a whole number of at least 0"), tuple(ks))
    entry.done(("problems", "k"))
    return plan


def _likelihood(given: Fields) -> LikelihoodPlan:
    if "likelihood" not in given.left:
        return LikelihoodPlan()
    entry = given.inner("likelihood", given.left.pop("likelihood"))
    models = entry.take("models", [], lambda value: value == [] or texts(value), "a list of autoregressive models")
    plan = LikelihoodPlan(
        models=tuple(models),
        texts=entry.take("texts", 8, whole(2), "a whole number of at least 2"),
        read=entry.take("read", 48, whole(2), "a whole number of at least 2"),
        scored=entry.take("scored", 48, whole(1), "a whole number of at least 1"),
        conditions=tuple(
            condition
            for one in (_entries(entry, "conditions", "a list of conditions") if entry.left.get("conditions") else ())
            for condition, _ in read_condition(one)
        ),
    )
    entry.left.pop("conditions", None)
    entry.done([item.name for item in dataclasses.fields(LikelihoodPlan)])
    if plan.models and Condition("none") not in plan.conditions:
        raise entry.error("conditions", "must have none among them, since everything is compared with it")
    return plan


def _condition_entry(condition: Condition, models: str = MODELS[0]) -> dict[str, Any]:
    from sinkscope.study.conditions import TAKES

    takes = TAKES[condition.name]
    words = {name: value for name, value in condition.to_dict().items() if name in takes and value is not None}
    return {"name": condition.name, **words, **({} if models == MODELS[0] else {"for": models})}


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    return "whole" if value is None else str(value)
