"""Study files at the boundary: bounded YAML, pydantic's checks, and one sentence for a mistake: file, line, field, what came."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sinkscope.errors import StudyError
from sinkscope.fields import shown
from sinkscope.io.bounded_yaml import LARGEST, Path, parse, written
from sinkscope.io.reading import read_text

Made = TypeVar("Made")


class EntryError(ValueError):
    """A mistake that one of our own checks found: what the field must be, and where below it the wrong value stands."""

    def __init__(self, sentence: str, *path: int | str) -> None:
        super().__init__(sentence)
        self.path = path


def read_yaml(path: pathlib.Path, where: str) -> tuple[Any, dict[Path, int]]:
    """Plain values of a file that is not too large, and the line of every one of them."""
    return parse(read_text(path, LARGEST, StudyError), where, StudyError)


def validated(kind: type[Made], values: Any, where: str, lines: Mapping[Path, int]) -> Made:
    """Plain values as a checked dataclass; lines: of every value in the file; the first mistake is raised."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise _sentence(error, kind, values, where, lines) from None


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
            raise _sentence(error, kind, words, kind.__name__, {}) from None

    kind.__init__ = init
    made: type[Made] = kind
    return made


def _sentence(error: ValidationError, kind: type, values: Any, where: str, lines: Mapping[Path, int]) -> StudyError:
    problem = error.errors()[0]
    path, holder, expected = _place(kind, problem["loc"])
    match problem["type"]:
        case "missing":
            path, sentence = path[:-1], f"needs the field {path[-1]!r}: {expected}"
        case "unexpected_keyword_argument" | "unexpected_positional_argument":
            known = ", ".join(item.name for item in fields(holder))
            sentence = f"is not a field that is known here; known are {known}"
        case "dataclass_type" | "mapping_type" | "dict_type":
            sentence = f"must be a mapping of fields, not {shown(problem['input'])}"
        case "value_error" if isinstance(wrong := problem["ctx"]["error"], EntryError):
            path, sentence = (*problem["loc"], *wrong.path), str(wrong)
        case "value_error" if own := str(problem["ctx"]["error"]):
            sentence = own
        case _:
            sentence = f"must be {expected}, not {shown(_value(values, path, problem['input']))}"
    line = next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), None)
    place = where if line is None else f"{where}, line {line}"
    return StudyError(f"{place}: {written(path) or 'the file'} {sentence}.")


def _place(kind: Any, loc: tuple[int | str, ...]) -> tuple[Path, Any, str]:
    """The field that a mistake is in, the dataclass that holds it, and what is expected there."""
    path: list[int | str] = []
    at, holder, expected = kind, kind, "what this field takes"
    for part in loc:
        path.append(part)
        if isinstance(part, int):  # an entry of a list of dataclasses
            continue
        holder = at
        field = at.__pydantic_fields__.get(part)
        inner = [] if field is None else _dataclasses(field.annotation)
        expected = (field.description if field is not None else None) or expected
        if not inner:
            break
        at = inner[0]
    return tuple(path), holder, expected


def _dataclasses(annotation: Any) -> list[Any]:
    """Checked dataclasses in an annotation such as tuple[TaskPlan, ...]."""
    if hasattr(annotation, "__pydantic_fields__"):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _dataclasses(part)]


def _value(values: Any, path: Path, default: Any) -> Any:
    for part in path:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return default
    return values
