"""Study files at the boundary: one sentence for a mistake, and fields that other packages know: conditions, rules, settings."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar, dataclass_transform, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sinkscope.aliases import NAMES
from sinkscope.decoding.settings import Mode, check_setting, setting_names
from sinkscope.errors import DecodeError, RuleError, StudyError
from sinkscope.fields import shown
from sinkscope.interventions.conditions import MODELS, Condition, read_entry
from sinkscope.interventions.settings import SettingError
from sinkscope.io.bounded_yaml import Path, written
from sinkscope.study import cache_conditions as _caches  # noqa: F401 - conditions that change how a model decodes

MOST = 1_000  # entries of a list, points of a sweep, conditions of a study
# Decode settings that a study does not choose, and what does.
DECIDED = {
    "family": "the model's family decides how it decodes",
    "noise": "a study always draws noise per_row, so that an answer does not depend on its chunk",
    "mode": "the entry of a model names it, {name: …, mode: …}",
}
CONDITIONS = "a list of conditions, each a name or {name: …, k: …}"
NEEDS_NONE = "must have none among them, since everything is compared with it"
Made = TypeVar("Made")
Pairs = tuple[tuple[Condition, str], ...]  # with the kind of models that a condition is for


class EntryError(ValueError):
    """A mistake that one of our own checks found: what the field must be, and where below it the wrong value stands."""

    def __init__(self, sentence: str, *path: int | str) -> None:
        super().__init__(sentence)
        self.path = path


def validated(kind: type[Made], values: Any, where: str, lines: Mapping[Path, int]) -> Made:
    """Plain values as a checked dataclass; lines: of every value in the file; the first mistake is raised."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise _sentence(error, where, lines) from None


@dataclass_transform(frozen_default=True)
def part(plan: type[Made]) -> type[Made]:
    """A part of a study: a frozen dataclass of checked fields, whose constructor words mistakes as a file does."""
    kind: Any = dataclass(frozen=True, config=ConfigDict(extra="forbid"))(plan)
    plain = kind.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **words: Any) -> None:
        try:
            plain(self, *args, **words)
        except ValidationError as error:
            raise _sentence(error, kind.__name__, {}) from None

    kind.__init__ = init
    made: type[Made] = kind
    return made


def _sentence(error: ValidationError, where: str, lines: Mapping[Path, int]) -> StudyError:
    """The first mistake: pydantic's own words, but for those of our own checks."""
    problem = error.errors()[0]
    path: Path = tuple(problem["loc"])
    match problem["type"]:
        case "missing":
            path, sentence = path[:-1], f"needs the field {path[-1]!r}"
        case "unexpected_keyword_argument" | "unexpected_positional_argument":
            sentence = "is not a field that is known here; correct its name, or leave it out"
        case "dataclass_type" | "mapping_type" | "dict_type":
            sentence = f"must be a mapping of fields, not {shown(problem['input'])}"
        case "value_error":
            wrong = problem["ctx"]["error"]
            path, sentence = (*path, *getattr(wrong, "path", ())), str(wrong)
        case _:
            words = re.sub("^.* should ", "must ", problem["msg"]).replace("valid tuple", "list")
            sentence = words if ", not " in words else f"{words}, not {shown(problem['input'])}"
    line = next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), None)
    place = where if line is None else f"{where}, line {line}"
    return StudyError(f"{place}: {written(path) or 'the file'} {sentence}.")


# ---- fields


def model_label(value: Any) -> Any:
    """A model in one mode, {name: …, mode: …}, as the label that names it in all of a run: name (mode)."""
    if not isinstance(value, Mapping):
        return value
    name, mode = value.get("name"), value.get("mode")
    if set(value) != {"name", "mode"} or not isinstance(name, str) or not name.strip() or mode not in get_args(Mode):
        known = ", ".join(get_args(Mode))
        raise ValueError(f"must be a name, or {{name: …, mode: …}} with a mode of {known}, not {shown(value)}")
    return f"{name} ({mode})"


def name_and_mode(label: str) -> tuple[str, str | None]:
    """What a label stands for; a plain name has no mode."""
    name, _, mode = label.removesuffix(")").rpartition(" (")
    return (name, mode) if name and label.endswith(")") and mode in get_args(Mode) else (label, None)


def each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("must name each model once")
    return names


def known_task(name: str) -> str:
    from sinkscope.tasks import TASKS
    from sinkscope.tasks.benchmarks import GSM8K, HUMANEVAL, is_benchmark

    if not is_benchmark(name) and name not in TASKS:
        raise ValueError(f"must be one of {', '.join([*TASKS, *GSM8K, *HUMANEVAL])}, not {shown(name)}")
    return name


def named_tasks(value: Any) -> Any:
    """A plain word stands for a mapping with that name."""
    return [{"name": one} if isinstance(one, str) else one for one in value] if isinstance(value, list) else value


def known_device(name: str | None) -> str | None:
    import torch

    from sinkscope.models.load import SPREAD

    if name is not None and name not in SPREAD:
        try:
            torch.device(name)
        except RuntimeError:
            raise ValueError(f"must be cpu, cuda, mps, another device of torch, or auto, not {shown(name)}") from None
    return name


def pairs(value: Any) -> Pairs:
    """Every condition that the entries name, with the kind of models it is for; a list in an entry is a sweep."""
    if isinstance(value, tuple) and all(
        isinstance(one, tuple | Condition) for one in value
    ):  # of a Study, not of a file
        return tuple((one, "all") if isinstance(one, Condition) else one for one in value)
    if not isinstance(value, list):
        raise EntryError(f"must be {CONDITIONS}, not {shown(value)}")
    found: list[tuple[Condition, str]] = []
    for index, one in enumerate(value):
        if not isinstance(one, str | Mapping):
            raise EntryError(f"must be a mapping of fields, not {shown(one)}", index)
        entry = {"name": one} if isinstance(one, str) else dict(one)
        models = entry.pop("for", MODELS[0])
        if not isinstance(models, str) or models not in MODELS:
            raise EntryError(f"must be one of {', '.join(MODELS)}, not {shown(models)}", index, "for")
        try:
            found += [(condition, models) for condition in read_entry(entry, MOST + 1)]
        except SettingError as error:
            raise EntryError(str(error), index, *([error.field] if error.field else [])) from None
        if len(found) > MOST:
            raise EntryError(f"makes more than {MOST:,} conditions; leave some out", index)
    return tuple(found)


def conditions(value: Any) -> tuple[Condition, ...]:
    """Conditions alone."""
    return tuple(condition for condition, _ in pairs(value))


def compared(value: Any) -> Pairs:
    """`none` is among them, none is a duplicate, and `none`, which all others are compared with, comes first."""
    if value == []:
        raise EntryError(f"must be {CONDITIONS}, not {shown(value)}")
    found = pairs(value)
    if Condition("none") not in [condition for condition, _ in found]:
        raise EntryError(NEEDS_NONE)
    seen: dict[Condition, list[str]] = {}
    for condition, models in found:
        before = seen.setdefault(condition, [])
        if before and ("all" in (models, *before) or models in before):
            raise EntryError(f"must not have {condition.label!r} twice")
        before.append(models)
    order = {"none": 0, "noop": 1}
    return tuple(sorted(found, key=lambda pair: order.get(pair[0].name, 2)))


def rule(value: Any) -> Mapping[str, Any]:
    """A sink rule with every default filled in."""
    from sinkscope.sinks.rules import rule_from_dict

    if not isinstance(value, Mapping):
        raise EntryError(f"must be a mapping of fields, not {shown(value)}")
    try:
        return rule_from_dict(value).to_dict()
    except (RuleError, TypeError) as error:
        raise EntryError(f"is no sink rule: {str(error).rstrip('.')}") from None


def decode_settings(words: Any) -> dict[str, Any]:
    """Decode settings as they stand, each one value or a list to sweep, once every one of them is known and fits."""
    if not isinstance(words, dict):
        raise EntryError(f"must be a mapping of decode settings, not {shown(words)}")
    known = setting_names()
    for name, value in words.items():
        if name in DECIDED:
            raise EntryError(f"must not be given: {DECIDED[name]}", name)
        if name not in known:
            raise EntryError(f"is no decode setting; use {NAMES.get(name) or ', '.join(sorted(known))}", name)
        if isinstance(value, dict) or value == []:
            raise EntryError(f"must be one value, or a list of values to sweep, not {shown(value)}", name)
        for one in value if isinstance(value, list) else [value]:
            try:
                check_setting(name, one)
            except DecodeError as error:
                raise EntryError(f"is wrong: {str(error).rstrip('.')}", name) from None
    points = math.prod(len(value) for value in words.values() if isinstance(value, list))
    if points > MOST:
        raise EntryError(f"makes {points:,} points, and at most {MOST:,} can be swept; leave some out")
    return dict(words)
