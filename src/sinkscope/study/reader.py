"""Study files at the boundary: YAML with the line of every field, so that a mistake is told where it stands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import yaml

from sinkscope.errors import StudyError

Path = tuple[str | int, ...]
LONGEST_NAME = 150  # bytes of a file's name, with room for what is put behind it


class Fields:
    """One mapping of a study file: fields are taken out one by one, and what is left over is a mistake."""

    def __init__(self, values: Any, where: str = "the study", lines: Mapping[Path, int] | None = None, path: Path = ()):
        self.where, self.lines, self.path = where, lines or {}, path
        if not isinstance(values, Mapping):
            raise self.error("", f"must be a mapping of fields, not {values!r}")
        self.left: dict[str, Any] = dict(values)

    def error(self, field: str, sentence: str) -> StudyError:
        """`field` of this mapping is wrong: one sentence with file, line and field."""
        path = (*self.path, field) if field else self.path
        line = next((self.lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.lines), None)
        place = self.where if line is None else f"{self.where}, line {line}"
        return StudyError(f"{place}: {_written(path) or 'the file'} {sentence}.")

    def take(self, field: str, default: Any, check: Callable[[Any], bool], expected: str) -> Any:
        """The field's value, or the default; `expected` says what `check` wants."""
        if field not in self.left:
            return default
        value = self.left.pop(field)
        if not check(value):
            raise self.error(field, f"must be {expected}, not {value!r}")
        return value

    def need(self, field: str, check: Callable[[Any], bool], expected: str) -> Any:
        if field not in self.left:
            raise self.error("", f"needs the field {field!r}: {expected}")
        return self.take(field, None, check, expected)

    def inner(self, field: str, values: Any, index: int | None = None) -> Fields:
        path = (*self.path, field) if index is None else (*self.path, field, index)
        return Fields(values, self.where, self.lines, path)

    def done(self, known: Collection[str]) -> None:
        """Nothing may be left over."""
        for field in self.left:
            raise self.error(str(field), f"is not a field that is known here; known are {', '.join(known)}")


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


def parse(source: str, where: str) -> tuple[Any, dict[Path, int]]:
    """Plain values of a YAML text, and the line of every one of them."""
    try:
        node = yaml.compose(source, Loader=yaml.SafeLoader)
        lines: dict[Path, int] = {}
        if node is not None:
            _walk(node, (), lines, where)
        return yaml.safe_load(source), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise StudyError(f"{place}: this is not YAML ({problem}); mend the line.") from None
    except RecursionError:
        raise StudyError(
            f"{where}: a value stands inside itself by an alias, or too deep inside others; write it out flat."
        ) from None
    except ValueError as error:  # a date that does not exist, say
        raise StudyError(f"{where}: a value cannot be read ({error}); mend it.") from None


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], where: str) -> None:
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise StudyError(
                    f"{where}, line {key.start_mark.line + 1}: {_written((*path, name))} stands there twice."
                )
            seen.add(name)
            _walk(value, (*path, name), lines, where)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), lines, where)


def _written(path: Path) -> str:
    """conditions[2].k"""
    written = ""
    for part in path:
        written += f"[{part}]" if isinstance(part, int) else f".{part}" if written else str(part)
    return written
