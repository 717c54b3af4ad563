"""`Study`: what is run; the dataclasses here are the study file, whose fields check themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, SkipValidation, TypeAdapter, model_validator

from sinkscope.conditions import MOST, NONE, NOOP, Condition, sweep_points
from sinkscope.decoding.settings import Mode, check_setting, setting_names
from sinkscope.errors import StudyError
from sinkscope.files import MB, parse_yaml, read_text
from sinkscope.sinks.rules import rule_from_dict
from sinkscope.tasks import TASKS
from sinkscope.tasks.benchmarks import GSM8K, HUMANEVAL, BenchmarkPlan, is_benchmark
from sinkscope.tasks.problem import read_prompts, task_name
from sinkscope.validation import NAMES, FieldError, Text, Truth, as_field, settings, show_value, suggest, validate

STUDIES = Path(__file__).parent / "studies"
LONGEST_FILE_NAME = 150  # bytes of a file's name, with room for what is put behind it
DEFAULT_RULE = {"rule": "threshold", "epsilon": 3.0, "unit": "uniform"}
# Decode settings that a study does not choose, and what does.
NOT_CONFIGURABLE = {
    "family": "the model's family decides how it decodes",
    "noise": "a study always draws noise per_row, so that an answer does not depend on its chunk",
    "mode": "the entry of a model names it, {name: …, mode: …}",
}
TASK_FIELDS: Mapping[str, set[str]] = {  # fields that mean something to one kind of tasks alone
    "ours": {"difficulty"},
    "benchmarks": {"protocol", "data", "examples", "fewshot", "chat", "decode", "repeats"},
    "files": {"prompts", "digest"},
}


# ---- types of fields


@settings(StudyError)
class ModelInMode:
    """A model as one of its modes decodes."""

    name: Text
    mode: Mode


def _file_name(value: str) -> str:
    """A name that a folder can have, and that leads nowhere else."""
    plain = value == value.strip() != "." and value.isprintable() and len(value.encode()) <= LONGEST_FILE_NAME
    if not value or not plain or any(part in value for part in ("/", "\\", "..")):
        raise ValueError(f"must be a plain file name without slashes and '..', got {show_value(value)}")
    return value


def _model_label(value: Any) -> Any:
    """A model in one mode, {name: …, mode: …}, as the label that names it in all of a run: name (mode)."""
    if not isinstance(value, Mapping):
        return value
    with as_field():
        one = ModelInMode(**value)
    return f"{one.name} ({one.mode})"


def name_and_mode(label: str) -> tuple[str, str | None]:
    """What a model's label stands for; a plain name has no mode."""
    name, _, mode = label.removesuffix(")").rpartition(" (")
    return (name, mode) if name and label.endswith(")") and mode in get_args(Mode) else (label, None)


def _check_unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Models and tasks, each of another name."""
    names = [getattr(one, "name", one) for one in values]
    if again := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ValueError(f"must be unique, and {again[0]} is a duplicate")
    return values


def _read_tasks(value: Any) -> Any:
    """A plain word stands for a mapping with that name."""
    return [{"name": one} if isinstance(one, str) else one for one in value] if isinstance(value, list) else value


def _check_device(name: str | None) -> str | None:
    """A device that torch knows; a cluster may have it where this machine has not."""
    import torch

    from sinkscope.models.load import SPREAD

    with as_field():
        torch.device("cpu" if name is None or name in SPREAD else name)
    return name


def _read_conditions(value: Any) -> tuple[Condition, ...]:
    """Every condition that the entries name; a list in an entry is a sweep."""
    if isinstance(value, tuple) and all(isinstance(one, Condition) for one in value):  # of a Study, not of a file
        return value
    found: list[Condition] = []
    for index, entry in enumerate(TypeAdapter(list[str | dict[str, Any]]).validate_python(value)):
        with as_field(index):
            found += Condition.read(entry)
        if len(found) > MOST:
            raise FieldError(f"makes more than {MOST:,} conditions; leave some out", index)
    return tuple(found)


def _read_compared(value: Any) -> tuple[Condition, ...]:
    """`none` is among them, none is a duplicate, and `none`, which all others are compared with, comes first."""
    found = _read_conditions(value)
    seen: dict[Condition, list[str]] = {}
    for condition in found:
        before = seen.setdefault(condition, [])
        if before and ("all" in (condition.models, *before) or condition.models in before):
            raise FieldError(f"must not have {condition.label!r} twice")
        before.append(condition.models)
    order = {NONE: 0, NOOP: 1}
    return tuple(sorted(found, key=lambda condition: order.get(condition, 2)))


def _read_traced(value: Any) -> Any:
    """Names as they are, mappings as conditions."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(made for one in value for made in (_read_conditions([one]) if isinstance(one, Mapping) else [one]))


def _read_rule(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A sink rule with every default filled in."""
    with as_field():
        return rule_from_dict(value).to_dict()


def _read_decode(words: dict[str, Any]) -> dict[str, Any]:
    """Decode settings as they stand, each one value or a list to sweep, once every one of them is known and fits."""
    known = setting_names(lists=False) - set(NOT_CONFIGURABLE)
    for name, value in words.items():
        if name not in known:
            why = NOT_CONFIGURABLE.get(name) or f"use {NAMES.get(name) or ', '.join(sorted(known))}"
            raise FieldError(f"is no decode setting of a study; {why}", name)
        for one in value if isinstance(value, list) else [value]:
            with as_field(name):
                check_setting(name, one)
    sweep_points(words)
    return words


def _from(least: int) -> Any:
    return Field(strict=True, ge=least, le=1_000_000)


Whole0 = Annotated[int, _from(0)]
Whole1 = Annotated[int, _from(1)]
Whole2 = Annotated[int, _from(2)]
Points = Annotated[float, Field(strict=True, gt=0, le=50)]
FEW, SOME = Field(max_length=MOST), Field(min_length=1, max_length=MOST)  # of a list
ModelNames = Annotated[tuple[Annotated[Text, BeforeValidator(_model_label)], ...], FEW, AfterValidator(_check_unique)]
Conditions = Annotated[SkipValidation[tuple[Condition, ...]], BeforeValidator(_read_conditions)]
DecodeWords = Annotated[dict[str, Any], AfterValidator(_read_decode)]
RuleWords = Annotated[dict[str, Any], AfterValidator(_read_rule)]


# ---- parts of a study


@settings(StudyError)
class TaskPlan:
    """Problems of one kind of ours, a benchmark as its protocol asks it, or the prompts of a file."""

    name: Text
    problems: Whole1 | None = None  # of a benchmark all, unless given
    difficulty: Annotated[int | None, Field(strict=True, ge=1, le=3)] = None
    # Of benchmarks (`sinkscope.tasks.benchmarks.BenchmarkPlan`).
    protocol: Text | None = None
    data: Text | None = None
    examples: Text | None = None
    fewshot: Whole0 | None = None
    chat: Truth | None = None
    decode: DecodeWords = Field(default_factory=dict)
    repeats: Whole1 | None = None  # answers per problem, with other random numbers; 1 unless given
    # A file of JSON lines, each with prompt, and answer or check; digest: of what was read from it.
    prompts: Text | None = None
    digest: Text | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> TaskPlan:
        """A task has the fields of its kind alone."""
        kind = (
            "ours" if self.prompts is None and not self.is_benchmark else "benchmarks" if self.is_benchmark else "files"
        )
        known = [*TASKS, *GSM8K, *HUMANEVAL]
        if (self.name in known) == (kind == "files"):
            must = "be a name of its own" if kind == "files" else "be a task"
            raise FieldError(f"must {must}, got {show_value(self.name)}: {suggest(self.name, known)}", "name")
        if kind == "ours" and self.problems is None:
            raise FieldError("must be given for problems of ours, of which there is no end", "problems")
        for name in sorted(set().union(*TASK_FIELDS.values()) - TASK_FIELDS[kind]):
            if getattr(self, name):
                raise FieldError(f"is for {' and '.join(one for one in TASK_FIELDS if name in TASK_FIELDS[one])}", name)
        return self

    @property
    def is_benchmark(self) -> bool:
        return self.prompts is None and is_benchmark(self.name)

    def limit(self, wanted: int | None) -> int:
        """How many problems are asked where so many are wanted, or all of the plan; a benchmark has no more than it has."""
        own = self.problems or 0
        if wanted is None:
            return own
        return min(own, wanted) if self.is_benchmark or self.prompts is not None else wanted

    def benchmark(self) -> BenchmarkPlan:
        """What the benchmark's own module takes."""
        data, examples = (None if one is None else Path(one).expanduser() for one in (self.data, self.examples))
        return BenchmarkPlan(self.name, self.protocol, data, examples, self.fewshot, self.chat, self.decode)


@settings(StudyError)
class SequentialPlan:
    """Problems are looked at in rounds, in a random order; a comparison ends when it is decided."""

    margin: Points = 5.0  # points
    round: Whole1 = 50


@settings(StudyError)
class TracePlan:
    """What is traced: so many problems per task, of which the first `keep` are saved whole."""

    problems: Whole0
    models: ModelNames = ()  # further models, which are traced with nothing changed and answer nothing
    keep: Whole0 = 1
    # Conditions under which traces are taken: a name stands for all conditions of that name, {name: …, k: …} for these.
    conditions: Annotated[tuple[Any, ...], SOME, BeforeValidator(_read_traced)] = ("none",)
    # So many heads per saved trace keep their whole attention maps: the furthest relocating and the firmest static ones.
    maps: Whole0 = 0
    # The share of non-sinks is measured at each, in every unit.
    epsilons: Annotated[tuple[Annotated[float, Field(strict=True, ge=0, le=1e9)], ...], FEW] = ()
    norms: Truth = True
    # Kept traces also hold what each layer would write at each position.
    lens: Truth = False
    # Decode settings of traces alone, over those of the study; a model whose decoder does not have them keeps its own.
    decode: DecodeWords = Field(default_factory=dict)

    def takes(self, condition: Condition) -> bool:
        """Whether traces are taken under this condition."""
        return condition.name in self.conditions or condition in self.conditions

    @model_validator(mode="after")
    def _kept(self) -> TracePlan:
        if self.maps and not min(self.keep, self.problems):
            raise FieldError("has no effect: no trace is saved; set keep and problems to 1 or more", "maps")
        return self


@settings(StudyError)
class MechanismPlan:
    """Confidence and commit delay where tokens depended on the masked sinks."""

    problems: Whole0
    k: Annotated[tuple[Whole1, ...], SOME] = (1, 5)


@settings(StudyError)
class LikelihoodPlan:
    """Models that are measured by the likelihood of held-out text; those not installed are skipped with a warning."""

    models: ModelNames = ()  # that answer no problems
    answering: Truth = False  # the models of the study too
    file: Text | None = None  # passages with empty lines between; None: some that ship
    samples: Whole1 = 16  # canvases of each text that a diffusion model is asked about
    texts: Whole2 = 8
    read: Whole2 = 48  # tokens read at once, before the masking begins
    scored: Whole1 = 48  # tokens whose likelihood counts, one per step
    conditions: Conditions = ()


@settings(StudyError)
class ForcedPlan:
    """Models that are measured by the likelihood of the true answers; those not installed are skipped with a warning."""

    models: ModelNames = ()
    problems: Whole2 = 20  # of each task
    # Shares of the answer that a diffusion model finds masked; an autoregressive one has the chain rule.
    levels: Annotated[tuple[Annotated[float, Field(strict=True, gt=0, le=1)], ...], SOME] = (0.25, 0.5, 0.75, 1.0)
    conditions: Conditions = ()


@settings(StudyError)
class Study:
    """Study: models, tasks and conditions to compare, and what else is measured. Its fields are those of a study file.

    In `conditions` and `decode`, a list of values is a sweep.

    Args:
        name: Name of the study, and of its default folder.
        about: Description in a sentence.
        seed: Seed of problems, sampling and bootstraps.
        split: Split that problems are taken from: "train", "validation" or "test".
        chunk: Number of problems per work item.
        margin: Largest drop of accuracy, in percentage points, that counts as no effect, if the whole interval lies
            within it.
        draws: Number of samples of every bootstrap, at least 100.
        dtype: Floating-point type of the weights, as in `load`.
        device: Device, as in `load`.
        models: Names of the models, as in `load`.
        tasks: Tasks and benchmarks, each with its number of problems.
        decode: Decode settings that replace single settings of each model's defaults.
        conditions: Conditions under which every problem is answered; "none" must be among them.
        primary: Comparisons whose p values are corrected together; the default is masking one sink, in every model and
            task.
        expected: Verdicts that are known beforehand, as model to verdict name to value; a run with another verdict
            fails.
        rules: Sink rules by which sinks are counted.
        trace: Traces to record.
        mechanism: Measurement of confidence and commit delay where tokens depended on masked sinks.
        likelihood: Measurement of the likelihood of held-out text.
        forced: Measurement of the likelihood of the true answers.
        shift: Number of problems per task along whose unmasked path logits are compared.
        sequential: Sequential test, in which a comparison ends as soon as it is decided; None answers all problems.

    Raises:
        StudyError: If fields are wrong or contradict each other.
    """

    _: KW_ONLY
    # In the order in which a file is written.
    name: Annotated[str, Field(strict=True), AfterValidator(_file_name)]
    about: Annotated[str, Field(strict=True)] = ""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32)] = 0
    split: Literal["train", "validation", "test"] = "test"
    chunk: Whole1 = 25
    margin: Points = 5.0
    draws: Annotated[int, _from(100)] = 2000
    dtype: Text | None = None
    device: Annotated[Text | None, AfterValidator(_check_device)] = None
    models: ModelNames = ()
    tasks: Annotated[tuple[TaskPlan, ...], SOME, BeforeValidator(_read_tasks), AfterValidator(_check_unique)]
    decode: DecodeWords = Field(default_factory=dict)
    conditions: Annotated[SkipValidation[tuple[Condition, ...]], BeforeValidator(_read_compared)]
    primary: Conditions = ()
    expected: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    rules: Annotated[tuple[RuleWords, ...], SOME, Field(validate_default=True)] = (DEFAULT_RULE,)
    trace: TracePlan = TracePlan(problems=0)
    mechanism: MechanismPlan = MechanismPlan(problems=0)
    likelihood: LikelihoodPlan = LikelihoodPlan()
    forced: ForcedPlan = ForcedPlan()
    shift: Whole0 = 0
    sequential: SequentialPlan | None = None

    @model_validator(mode="after")
    def _together(self) -> Study:
        """What no field can say alone."""
        models = [*self.models, *self.extra_models]
        if not models or len(set(models)) < len(models):
            raise FieldError(f"must name at least one model, and each in one place alone, got {models}", "models")
        compared = {"conditions": self.conditions}
        compared |= {"likelihood": self.likelihood.conditions} if self.likelihood.models else {}
        compared |= {"forced": self.forced.conditions} if self.forced.models else {}
        for part, conditions in compared.items():
            if NONE not in conditions:
                raise FieldError("must have none among its conditions: everything is compared with it", part)
        for condition in self.likelihood.conditions:
            if condition.decode:
                raise FieldError(f"must not have {condition.label!r}: reading a text decodes nothing", "likelihood")
        known = {*self.conditions, *(condition.name for condition in self.conditions)}
        traced = self.trace.conditions if self.trace.problems else ()
        named = {"primary": (self.primary, known), "expected": (self.expected, self.models), "trace": (traced, known)}
        for field, (wanted, there) in named.items():
            for one in wanted:
                if one not in there:
                    name = one.label if isinstance(one, Condition) else one
                    raise FieldError(f"names {name}, which the study does not have", field)
        return self

    @classmethod
    def load(cls, name: str | Path) -> Study:
        """Load a shipped study or a YAML file.

        Args:
            name: Name of a shipped study, or path of a YAML file.
        """
        path = Path(name)
        if path.suffix not in (".yaml", ".yml") or not (path.is_file() or (STUDIES / path.name).is_file()):
            path = STUDIES / f"{name}.yaml"
            if not path.is_file():
                raise StudyError(f"Expected a study file, or one of {', '.join(shipped())}, got {str(name)!r}.")
        return cls.read(path if path.is_file() else STUDIES / path.name, path.name)

    @classmethod
    def read(cls, path: Path, where: str | None = None) -> Study:
        """Read a YAML file.

        Args:
            path: Path of the file.
            where: Name of the file in error messages; the default is the path.
        """
        where = where or str(path)
        values, lines = parse_yaml(read_text(path, StudyError, MB), where, StudyError)
        study: Study = validate(cls, values, where, StudyError, lines)
        return study

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Study:
        """Build a study from the content of a study file.

        Args:
            values: Mapping from field to value.
        """
        study: Study = validate(cls, values, "the study", StudyError)
        return study

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain YAML values, which `from_dict` reads."""
        found: dict[str, Any] = _plain(self)
        return found

    def to_yaml(self) -> str:
        """Return the text of a study file, which `load` reads."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)

    @property
    def has_table(self) -> bool:
        """Whether answers come before all other measurements and have a table of their own."""
        return self.sequential is not None or self.shift > 0 or any(task.is_benchmark for task in self.tasks)

    @property
    def extra_models(self) -> tuple[str, ...]:
        """Models that answer no problems; they are traced or measured by likelihood, and skipped where they are not
        installed.
        """
        return (*self.likelihood.models, *self.forced.models, *self.trace.models)

    def settings(self) -> list[tuple[str, dict[str, Any]]]:
        """List the points of the decode sweep, each with a label (empty without a sweep) and its decode settings."""
        swept = [name for name, value in self.decode.items() if isinstance(value, list)]
        points = sweep_points(self.decode)
        shown = [{name: "whole" if point[name] is None else point[name] for name in swept} for point in points]
        labels = [", ".join(f"{name}={value}" for name, value in one.items()) for one in shown]
        return list(zip(labels, points, strict=True))

    def changed(
        self, models: Sequence[str] | None = None, problems: int | None = None, tasks: Sequence[str] | None = None,
        seed: int | None = None, texts: Path | None = None, prompts: Path | str | None = None, **more: Any,
    ) -> Study:  # fmt: skip
        """Return a copy with other models, tasks or numbers, checked like a study file.

        Args:
            models: Names of the models that answer.
            problems: Number of problems per task.
            tasks: Names of the tasks.
            seed: Seed of the study.
            texts: File of passages whose likelihood is measured.
            prompts: File of JSON lines with prompts, which replace the tasks.
            **more: Further fields; a field that is None keeps its value.
        """
        values = {**self.to_dict(), **{name: value for name, value in more.items() if value is not None}}
        if models is not None:
            scored = (*self.likelihood.models, *self.forced.models)
            for part in ("likelihood", "forced"):
                values[part]["models"] = [name for name in getattr(self, part).models if name in models]
            values["trace"]["models"] = []  # whoever names a model wants its answers too
            values["models"] = [name for name in models if name not in scored]
            if self.expected:
                values["expected"] = {name: told for name, told in self.expected.items() if name in models}
        if seed is not None:
            values["seed"] = seed
        if texts is not None:
            values["likelihood"]["file"] = str(texts.resolve())
        if tasks is not None:
            known = {task["name"]: task for task in values["tasks"]}
            size = self.tasks[0].problems
            values["tasks"] = [known.get(name, {"name": name, "problems": size}) for name in tasks]
        if prompts is not None:
            values["tasks"] = [prompts_entry(prompts)]
        if problems is not None:
            values["tasks"] = [{**task, "problems": problems} for task in values["tasks"]]
        return Study.from_dict(values)


def prompts_entry(path: Path | str) -> dict[str, Any]:
    """A file of prompts as a task of a study."""
    name = task_name(path, {*TASKS, *GSM8K, *HUMANEVAL})
    return {"name": name, "prompts": str(Path(path).expanduser().absolute()), "problems": len(read_prompts(path))}


def shipped() -> list[str]:
    """The studies that come with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def _plain(value: Any) -> Any:
    """Plain YAML; a field that is empty is left out, and has nothing as its default."""
    match value:
        case Condition():
            return value.entry()
        case tuple() | list():
            return [_plain(one) for one in value]
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
    if not is_dataclass(value):
        return value
    found = {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return {name: one for name, one in found.items() if one not in (None, "", [], {})}
