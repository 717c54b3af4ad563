"""Study files at the boundary: bounded YAML, pydantic's checks, and one sentence for a mistake: file, line, field, what came."""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Mapping
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
