"""`Study`: what is run; the dataclasses here are the study file: pydantic checks every field, `study_file` words mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, SkipValidation, model_validator

from sinkscope.errors import StudyError
from sinkscope.interventions.conditions import Condition
from sinkscope.study import entries
from sinkscope.study.entries import MOST, Pairs
from sinkscope.study.study_file import EntryError, part, read_yaml, validated

STUDIES = Path(__file__).parent / "studies"
LONGEST_FILE_NAME = 150  # bytes of a file's name, with room for what is put behind it
LEAST_STEPS = 2  # of the mechanism: it compares what the second forward sees
DEFAULT_RULE = {"rule": "threshold", "epsilon": 3.0, "unit": "uniform"}
WRITTEN = (  # the order of a study's fields in its file
    "name", "about", "seed", "split", "chunk", "margin", "draws", "dtype", "device", "models", "tasks", "decode",
    "conditions", "primary", "expected", "rules", "trace", "mechanism", "likelihood", "forced",
)  # fmt: skip


# ---- types of fields


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError
    return value


def _file_name(value: str) -> str:
    """A name that a folder can have, and that leads nowhere else."""
    plain = value == value.strip() != "." and value.isprintable() and len(value.encode()) <= LONGEST_FILE_NAME
    if not value or not plain or any(part in value for part in ("/", "\\", "..")):
        raise ValueError
    return value


def _from(least: int) -> Any:
    return Field(strict=True, ge=least, le=1_000_000, description=f"a whole number of at least {least}")


def _list_of(what: str, least: int = 0) -> Any:
    return Field(min_length=least, max_length=MOST, description=f"a list of {what}")


Text = Annotated[str, Field(strict=True, max_length=4096), AfterValidator(_text)]
ModelName = Annotated[Text, BeforeValidator(entries.model_label)]
Whole0 = Annotated[int, _from(0)]
Whole1 = Annotated[int, _from(1)]
Whole2 = Annotated[int, _from(2)]
Truth = Annotated[bool, Field(strict=True, description="true or false")]
Once = AfterValidator(entries.each_once)
Conditions = Annotated[SkipValidation[tuple[Condition, ...]], BeforeValidator(entries.conditions)]


# ---- parts of a study


@part
class TaskPlan:
    """Problems of one kind."""

    name: Annotated[str, Field(strict=True, description="the name of a task"), AfterValidator(entries.known_task)]
    problems: Whole1
    difficulty: Annotated[int | None, Field(strict=True, ge=1, le=3, description="1, 2 or 3")] = None


@part
class TracePlan:
    """What is traced: so many problems per task, of which the first `keep` are saved whole."""

    problems: Whole0
    keep: Whole0 = 1
    # Conditions under which traces are taken: a name stands for all conditions of that name, a label for one of them.
    conditions: Annotated[tuple[Text, ...], _list_of("names or labels of conditions", 1)] = ("none",)
    # So many heads per saved trace keep their whole attention maps: the furthest relocating and the firmest static ones.
    maps: Whole0 = 0
    # The share of non-sinks is measured at each, in every unit.
    epsilons: Annotated[tuple[Annotated[float, Field(strict=True, ge=0, le=1e9)], ...], _list_of("numbers ≥ 0")] = ()
    norms: Truth = True
    # Kept traces also hold what each layer would write at each position.
    lens: Truth = False

    def takes(self, condition: Condition) -> bool:
        """Whether traces are taken under this condition."""
        return condition.name in self.conditions or condition.label in self.conditions

    @model_validator(mode="after")
    def _kept(self) -> TracePlan:
        if self.maps and not min(self.keep, self.problems):
            raise EntryError("has no effect: no trace is saved; set keep and problems to 1 or more", "maps")
        return self


@part
class MechanismPlan:
    """Confidence and commit delay where tokens depended on the masked sinks."""

    problems: Whole0
    k: Annotated[tuple[Whole1, ...], _list_of("whole numbers of at least 1", 1)] = (1, 5)


@part
class LikelihoodPlan:
    """Models that are measured by the likelihood of held-out text; those not installed are skipped with a warning."""

    models: Annotated[tuple[ModelName, ...], _list_of("autoregressive models"), Once] = ()
    texts: Whole2 = 8
    read: Whole2 = 48  # tokens read at once, before the masking begins
    scored: Whole1 = 48  # tokens whose likelihood counts, one per step
    conditions: Conditions = ()

    @model_validator(mode="after")
    def _compared(self) -> LikelihoodPlan:
        if self.models and Condition("none") not in self.conditions:
            raise EntryError(entries.NEEDS_NONE, "conditions")
        for condition in self.conditions:
            if condition.decode:
                told = f"must not have {condition.label!r}: it changes how a model decodes, and reading a text decodes nothing"
                raise EntryError(told, "conditions")
        return self


@part
class ForcedPlan:
    """Models that are measured by the likelihood of the true answers; those not installed are skipped with a warning."""

    models: Annotated[tuple[ModelName, ...], _list_of("models"), Once] = ()
    problems: Whole2 = 20  # of each task
    # Shares of the answer that a diffusion model finds masked; an autoregressive one has the chain rule.
    levels: Annotated[
        tuple[Annotated[float, Field(strict=True, gt=0, le=1)], ...], _list_of("shares above 0, at most 1", 1)
    ] = (0.25, 0.5, 0.75, 1.0)
    # With the kind of models it is for: all, causal, diffusion.
    conditions: Annotated[SkipValidation[Pairs], BeforeValidator(entries.pairs)] = ()

    @model_validator(mode="after")
    def _compared(self) -> ForcedPlan:
        if self.models and (Condition("none"), "all") not in self.conditions:
            raise EntryError(entries.NEEDS_NONE, "conditions")
        return self


@part
class Study:
    """One study. `decode` holds words on top of each model's defaults; a list in it is a sweep."""

    name: Annotated[
        str, Field(strict=True, description="a plain file name without slashes and '..'"), AfterValidator(_file_name)
    ]
    models: Annotated[tuple[ModelName, ...], _list_of("zoo names, folders or Hub ids"), Once]
    tasks: Annotated[
        tuple[TaskPlan, ...], _list_of("tasks, each {name: …, problems: …}", 1), BeforeValidator(entries.named_tasks)
    ]
    # With the kind of models it is for: all, causal, diffusion.
    conditions: Annotated[
        SkipValidation[Pairs],
        Field(description=entries.CONDITIONS),
        BeforeValidator(entries.compared),
    ]
    about: Annotated[str, Field(strict=True, description="a sentence")] = ""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32, description="a whole number of at least 0")] = 0
    split: Annotated[str, Field(pattern="^(train|validation|test)$", description="train, validation or test")] = "test"
    chunk: Whole1 = 25
    decode: Annotated[Mapping[str, Any], BeforeValidator(entries.decode_settings)] = Field(default_factory=dict)
    rules: Annotated[
        tuple[Annotated[Mapping[str, Any], BeforeValidator(entries.rule)], ...],
        Field(validate_default=True, min_length=1, max_length=MOST, description="a list of rules"),
    ] = (DEFAULT_RULE,)
    trace: TracePlan = TracePlan(problems=0)
    mechanism: MechanismPlan = MechanismPlan(problems=0)
    likelihood: LikelihoodPlan = LikelihoodPlan()
    forced: ForcedPlan = ForcedPlan()
    # A loss of fewer points counts as none, if its whole interval says so.
    margin: Annotated[float, Field(strict=True, gt=0, le=50, description="a number of points above 0, at most 50")] = (
        5.0
    )
    # The comparisons that the study is about, corrected together; none named: one masked sink, in every model and task.
    primary: Conditions = ()
    # Where the truth is known: model → verdict → how its value must begin. A run that says otherwise has failed.
    expected: Annotated[
        Mapping[str, Mapping[str, str]], Field(description="a mapping of models to verdicts and their values")
    ] = Field(default_factory=dict)
    draws: Annotated[int, _from(100)] = 2000  # of every bootstrap
    dtype: Annotated[Text | None, Field(description="a dtype such as bfloat16")] = None
    device: Annotated[
        Text | None,
        Field(description="cpu, cuda, mps, another device of torch, or auto"),
        AfterValidator(entries.known_device),
    ] = None

    @model_validator(mode="after")
    def _together(self) -> Study:
        """What no field can say alone."""
        if not self.models and not self.likelihood_models:
            raise EntryError("must name at least one model", "models")
        names = [task.name for task in self.tasks]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise EntryError(f"must be unique, and {name} is a duplicate", "tasks", place, "name")
        named = {"models": self.models, "likelihood": self.likelihood.models, "forced": self.forced.models}
        for (one, models), (other, more) in itertools.combinations(named.items(), 2):
            for name in sorted({*models} & {*more}):
                why = "it is measured by its answers, by text or by true answers, so take it out of all but one of them"
                raise EntryError(f"must not name {name}, which {one} names too; {why}", other)
        first = self.settings()[0][1]  # the mechanism takes the first point; without steps there are as many as tokens
        for word in ("steps", "length"):
            if self.mechanism.problems and first.get(word) is not None and first[word] < LEAST_STEPS:
                told = f"needs at least {LEAST_STEPS} steps, and decode.{word} is {first[word]}"
                raise EntryError(f"{told}; make it larger, or leave the mechanism out", "mechanism")
        known = [condition for condition, _ in self.conditions]
        for condition in self.primary:
            if condition not in known:
                raise EntryError(f"names {condition.label!r}, which is not among the conditions", "primary")
        for model in self.expected:
            if model not in self.models:
                raise EntryError(f"names the model {model}, which the study does not have", "expected")
        unknown = set(self.trace.conditions) - {
            word for condition, _ in self.conditions for word in (condition.name, condition.label)
        }
        if self.trace.problems and unknown:
            raise EntryError(f"names the condition {min(unknown)}, which the study does not have", "trace")
        return self

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
        return cls.read(path if path.is_file() else STUDIES / path.name, path.name)

    @classmethod
    def read(cls, path: Path, where: str | None = None) -> Study:
        """A YAML file; where: how mistakes name it, by default its whole path."""
        values, lines = read_yaml(path, where or str(path))
        return validated(cls, values, where=where or str(path), lines=lines)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Study:
        """A study of the values that a file would hold."""
        return validated(cls, values, where="the study", lines={})

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain YAML values; `from_dict` gives the same study back."""
        found: dict[str, Any] = {name: _plain(getattr(self, name)) for name in WRITTEN}
        # A field that came later stands there only where it says something: older runs can be continued.
        if not self.expected:
            del found["expected"]
        if not self.trace.lens:
            del found["trace"]["lens"]
        return found

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)

    @property
    def likelihood_models(self) -> tuple[str, ...]:
        """Models that write nothing: they are measured by likelihood, and left out where they are not installed."""
        return (*self.likelihood.models, *self.forced.models)

    def settings(self) -> list[tuple[str, dict[str, Any]]]:
        """Every point of the decode sweep: a label (empty where nothing is swept) and the words."""
        names = list(self.decode)
        values = [value if isinstance(value, list) else [value] for value in self.decode.values()]
        swept = [name for name in names if isinstance(self.decode[name], list)]
        points = [dict(zip(names, point, strict=True)) for point in itertools.product(*values)]
        shown = [{name: "whole" if point[name] is None else point[name] for name in swept} for point in points]
        labels = [", ".join(f"{name}={value}" for name, value in one.items()) for one in shown]
        return list(zip(labels, points, strict=True))

    def changed(
        self, models: Sequence[str] | None = None, problems: int | None = None, tasks: Sequence[str] | None = None,
        seed: int | None = None, **more: Any,
    ) -> Study:  # fmt: skip
        """The same study on other models, on other tasks, or with another number of problems; checked like a file."""
        values = {**self.to_dict(), **{name: value for name, value in more.items() if value is not None}}
        if models is not None:
            for part in ("likelihood", "forced"):
                values[part]["models"] = [name for name in getattr(self, part).models if name in models]
            values["models"] = [name for name in models if name not in self.likelihood_models]
            if self.expected:
                values["expected"] = {name: told for name, told in self.expected.items() if name in models}
        if seed is not None:
            values["seed"] = seed
        if tasks is not None:
            known = {task["name"]: task for task in values["tasks"]}
            size = self.tasks[0].problems
            values["tasks"] = [known.get(name, {"name": name, "problems": size}) for name in tasks]
        if problems is not None:
            values["tasks"] = [{**task, "problems": problems} for task in values["tasks"]]
        return Study.from_dict(values)


def shipped() -> list[str]:
    """The studies that come with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def _plain(value: Any) -> Any:
    match value:
        case Condition():
            return value.entry()
        case (Condition() as condition, str(models)):
            return condition.entry(models)
        case tuple() | list():
            return [_plain(one) for one in value]
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
    return {item.name: _plain(getattr(value, item.name)) for item in fields(value)} if is_dataclass(value) else value
