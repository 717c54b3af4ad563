"""YAML from elsewhere: its depth is counted before anything is built, and every value has its line."""

from __future__ import annotations

from typing import Any

import yaml

from sinkscope.errors import SinkscopeError

Path = tuple[str | int, ...]
LARGEST = 1 << 20  # bytes of a file
DEEPEST = 100  # values inside values
MOST = 100_000  # values in all, each counted as often as aliases name it
TOO_DEEP = "a value stands inside itself by an alias, or too deep inside others; write it out flat."
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads a megabyte in a second, Python alone in twenty


def parse(source: str, where: str, error: type[SinkscopeError]) -> tuple[Any, dict[Path, int]]:
    """Plain values of a YAML text, and the line of every one of them."""
    lines: dict[Path, int] = {}
    try:
        depth = 0
        for event in yaml.parse(source, Loader=Loader):  # events come one by one, without recursion
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise error(f"{where}: {TOO_DEEP}")
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
    except ValueError as problem:  # a date that does not exist, say
        told = str(problem).split("\n", 1)[0][:100]
        raise error(f"{where}: a value cannot be read ({told}); correct it.") from None


def written(path: Path) -> str:
    """A path as text, such as conditions[2].k."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], where: str, error: type[SinkscopeError]) -> None:
    """The line of every value; what an alias names is walked each time that it is named."""
    if len(path) > DEEPEST:
        raise error(f"{where}: {TOO_DEEP}")
    if len(lines) > MOST:
        raise error(f"{where}: more than {MOST:,} values, with aliases written out; leave some out.")
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = f"{where}, line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise error(f"{place}: the name of a field must be a plain word.")
            inner = (*path, str(key.value))
            if inner in lines:
                raise error(f"{place}: duplicate key {written(inner)}.")
            _walk(value, inner, lines, where, error)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), lines, where, error)
