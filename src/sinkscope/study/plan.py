"""`Study`: what is run, as one frozen value that is read from a YAML file and written back, resolved."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sinkscope.errors import StudyError
from sinkscope.study.conditions import Condition
from sinkscope.study.reader import parse

STUDIES = Path(__file__).parent / "studies"
LEAST_STEPS = 2  # of the mechanism: it compares what the second forward sees
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
        from sinkscope.study.checked import read_study

        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StudyError(f"{path} cannot be read ({type(error).__name__}); name a YAML file in UTF-8.") from None
        return read_study(*parse(source, path.name), where=path.name)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Study:
        """A study of the values that a file would hold."""
        from sinkscope.study.checked import read_study

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
            "conditions": [condition.entry(models) for condition, models in self.conditions],
            "rules": [dict(rule) for rule in self.rules],
            "trace": {name: _plain(value) for name, value in asdict(self.trace).items()},
            "mechanism": {name: _plain(value) for name, value in asdict(self.mechanism).items()},
            "likelihood": {
                **{name: _plain(value) for name, value in asdict(self.likelihood).items()},
                "conditions": [condition.entry() for condition in self.likelihood.conditions],
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


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    return "whole" if value is None else str(value)
