"""A mistake in a study is one sentence: file, line, field, what was expected, what came."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError, ValidationInfo

from sinkscope.errors import StudyError
from sinkscope.io.bounded_yaml import Path
from sinkscope.study.reader import mistake

Made = TypeVar("Made")
LONGEST = 120  # characters of a wrong value that are repeated


def validated(kind: type[Made], values: Any, where: str, lines: Mapping[Path, int]) -> Made:
    """Plain values as a checked dataclass; the first mistake is told."""
    context = {"where": where, "lines": lines}
    try:
        return TypeAdapter(kind).validate_python(values, context=context)
    except ValidationError as error:
        raise _told(error, kind, values, context) from None


def guarded(kind: type[Made]) -> type[Made]:
    """The constructor tells mistakes as a file does, not as pydantic does."""
    plain = kind.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **words: Any) -> None:
        try:
            plain(self, *args, **words)
        except ValidationError as error:
            raise _told(error, kind, words, {"where": kind.__name__, "lines": {}}) from None

    kind.__init__ = init  # type: ignore[method-assign]
    return kind


def refuse(info: ValidationInfo, path: Path, sentence: str) -> StudyError:
    """A mistake that one of our own checks found; `path` is where it stands in the file."""
    context = info.context or {"where": "the study", "lines": {}}
    return mistake(context["where"], context["lines"], path, sentence)


def shown(value: Any) -> str:
    """A wrong value as it is repeated: the beginning of it, if it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _told(error: ValidationError, kind: type, values: Any, context: Mapping[str, Any]) -> StudyError:
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
        case "value_error" if said := str(problem["ctx"]["error"]):
            sentence = said
        case _:
            sentence = f"must be {expected}, not {shown(_value(values, path, problem['input']))}"
    return mistake(context["where"], context["lines"], path, sentence)


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
