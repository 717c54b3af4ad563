"""Study files at the boundary: bounded YAML with the line of every field, so that a mistake is told where it stands."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sinkscope.errors import StudyError
from sinkscope.io import bounded_yaml
from sinkscope.io.bounded_yaml import LARGEST, Path, written
from sinkscope.io.reading import read_text

LONGEST_NAME = 150  # bytes of a file's name, with room for what is put behind it


def mistake(where: str, lines: Mapping[Path, int], path: Path, sentence: str) -> StudyError:
    """What is wrong at `path`: one sentence with file, line and field."""
    line = next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), None)
    place = where if line is None else f"{where}, line {line}"
    return StudyError(f"{place}: {written(path) or 'the file'} {sentence}.")


def whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def file_name(value: Any) -> bool:
    """A name that a folder can have, and that leads nowhere else."""
    plain = text(value) and value == value.strip() and value.isprintable() and len(value.encode()) <= LONGEST_NAME
    return plain and value != "." and not any(part in value for part in ("/", "\\", ".."))


def texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(text, value))


def optional(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def among(choices: Collection[Any]) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, list | dict) and value in choices


def read(path: pathlib.Path) -> str:
    """The text of a file that is not too large."""
    return read_text(path, LARGEST, StudyError)


def parse(source: str, where: str) -> tuple[Any, dict[Path, int]]:
    """Plain values of a YAML text, and the line of every one of them."""
    return bounded_yaml.parse(source, where, StudyError)
