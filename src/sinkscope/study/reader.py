"""Study files at the boundary: bounded YAML with the line of every field, so that a mistake is told where it stands."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import yaml

from sinkscope.errors import StudyError

Path = tuple[str | int, ...]
LARGEST = 1 << 20  # bytes of a file
DEEPEST = 100  # values inside values
MOST = 100_000  # values in all, each counted as often as aliases name it
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads a megabyte in a second, Python alone in twenty
LONGEST_NAME = 150  # bytes of a file's name, with room for what is put behind it


def mistake(where: str, lines: Mapping[Path, int], path: Path, sentence: str) -> StudyError:
    """What is wrong at `path`: one sentence with file, line and field."""
    line = next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), None)
    place = where if line is None else f"{where}, line {line}"
    return StudyError(f"{place}: {_written(path) or 'the file'} {sentence}.")


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
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise StudyError(
                f"{path.name} has more than {LARGEST >> 20} MB; a study file has a few lines: name another."
            )
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path} cannot be read ({type(error).__name__}); name a YAML file in UTF-8.") from None


def parse(source: str, where: str) -> tuple[Any, dict[Path, int]]:
    """Plain values of a YAML text, and the line of every one of them."""
    try:
        _bounded(source, where)
        loader = Loader(source)
        try:
            node = loader.get_single_node()
            lines: dict[Path, int] = {}
            if node is None:
                return None, lines
            _walk(node, (), lines, where)
            return loader.construct_document(node), lines
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise StudyError(f"{place}: this is not YAML ({problem}); correct the line.") from None
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:  # a date that does not exist, say
        raise StudyError(f"{where}: a value cannot be read ({_short(error)}); correct it.") from None


def _bounded(source: str, where: str) -> None:
    """Count before anything is built: the parser's events come one by one, without recursion."""
    depth = 0
    for count, event in enumerate(yaml.parse(source, Loader=Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise _too_deep(where)
        if count > 2 * MOST:
            raise _too_many(where)


def _too_deep(where: str) -> StudyError:
    return StudyError(
        f"{where}: a value stands inside itself by an alias, or too deep inside others; write it out flat."
    )


def _too_many(where: str) -> StudyError:
    return StudyError(
        f"{where}: more than {MOST:,} values, with aliases written out; a study has a few: leave some out."
    )


def _short(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:100]


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], where: str) -> None:
    """The line of every value; what an alias names is walked each time that it is named."""
    if len(path) > DEEPEST:
        raise _too_deep(where)
    if len(lines) > MOST:
        raise _too_many(where)
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise StudyError(f"{where}, line {key.start_mark.line + 1}: the name of a field must be a plain word.")
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
