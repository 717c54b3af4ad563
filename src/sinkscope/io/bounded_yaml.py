"""YAML from elsewhere: counted before anything is built, with the line of every value."""

from __future__ import annotations

from typing import Any

import yaml

from sinkscope.errors import SinkscopeError

Path = tuple[str | int, ...]
LARGEST = 1 << 20  # bytes of a file
DEEPEST = 100  # values inside values
MOST = 100_000  # values in all, each counted as often as aliases name it
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads a megabyte in a second, Python alone in twenty


def parse(source: str, where: str, error: type[SinkscopeError]) -> tuple[Any, dict[Path, int]]:
    """Plain values of a YAML text, and the line of every one of them."""
    lines: dict[Path, int] = {}
    try:
        _bounded(source, where, error)
        loader = Loader(source)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, lines
            _walk(node, (), lines, where, error)
            return loader.construct_document(node), lines
        finally:
            loader.dispose()
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}" if mark else where
        told = getattr(problem, "problem", None) or "it cannot be parsed"
        raise error(f"{place}: this is not YAML ({told}); correct the line.") from None
    except RecursionError:
        raise _too_deep(where, error) from None
    except ValueError as problem:  # a date that does not exist, say
        raise error(f"{where}: a value cannot be read ({_short(problem)}); correct it.") from None


def written(path: Path) -> str:
    """A path as text, such as conditions[2].k."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _bounded(source: str, where: str, error: type[SinkscopeError]) -> None:
    """Count before anything is built: the parser's events come one by one, without recursion."""
    depth = 0
    for count, event in enumerate(yaml.parse(source, Loader=Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise _too_deep(where, error)
        if count > 2 * MOST:
            raise _too_many(where, error)


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], where: str, error: type[SinkscopeError]) -> None:
    """The line of every value; what an alias names is walked each time that it is named."""
    if len(path) > DEEPEST:
        raise _too_deep(where, error)
    if len(lines) > MOST:
        raise _too_many(where, error)
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise error(f"{where}, line {key.start_mark.line + 1}: the name of a field must be a plain word.")
            name = str(key.value)
            if name in seen:
                raise error(f"{where}, line {key.start_mark.line + 1}: duplicate key {written((*path, name))}.")
            seen.add(name)
            _walk(value, (*path, name), lines, where, error)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), lines, where, error)


def _too_deep(where: str, error: type[SinkscopeError]) -> SinkscopeError:
    return error(f"{where}: a value stands inside itself by an alias, or too deep inside others; write it out flat.")


def _too_many(where: str, error: type[SinkscopeError]) -> SinkscopeError:
    return error(
        f"{where}: more than {MOST:,} values, with aliases written out; such a file has a few: leave some out."
    )


def _short(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:100]
