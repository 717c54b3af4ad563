"""Files: written whole or not at all, read within bounds; JSON that is an object, YAML with the line of every value."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from sinkscope.errors import SinkscopeError

MB = 1 << 20
PARTIAL = ".partial"  # how temporary names end; whoever opens a folder may remove what a killed process left
DEEPEST = 100  # values inside values
MOST_VALUES = 100_000  # of a YAML file, each counted as often as aliases name it
Location = tuple[str | int, ...]
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads a megabyte in a second, Python alone in twenty


# ---- writing


@contextmanager
def replace_file(path: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` when the block ends, and is gone when the block fails.

    durable: wait until it is on the disk, so that a loss of power cannot leave a name without its content.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if durable:
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes, durable: bool = True) -> Path:
    """Text (as UTF-8) or bytes into a file; a reader sees the old file, the new one, or none."""
    with replace_file(path, durable) as partial:
        partial.write_bytes(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
    return path


# ---- reading


@contextmanager
def report_damage(what: str, error: type[SinkscopeError], advice: str = "make it again") -> Iterator[None]:
    """What the system or a parser says of a file, and values of another kind than were expected, as one sentence."""
    try:
        yield
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        place = f"{what}, line {mark.line + 1}" if mark else what
        why = getattr(problem, "problem", None) or "it cannot be parsed"
        raise error(f"{place}: this is not YAML ({why}); correct the line.") from None
    except OSError as problem:
        raise error(f"{what} cannot be read ({describe_error(problem)}); check the path and permissions.") from None
    except (
        SyntaxError,
        LookupError,
        AttributeError,
        TypeError,
        ValueError,
        ArithmeticError,
        RecursionError,
    ) as problem:
        raise error(f"{what} is damaged ({describe_error(problem)}); {advice}.") from problem


def read_text(path: Path, error: type[SinkscopeError], most: int = 128 * MB) -> str:
    """A whole file as UTF-8 text."""
    with report_damage(short(path), error, "name another"):
        with path.open("rb") as file:
            data = file.read(most + 1)
        text = data.decode("utf-8")
    if len(data) > most:
        raise error(f"{short(path)} has more than {most // MB} MB; is it another file?")
    return text


def read_object(path: Path, most: int, error: type[SinkscopeError], advice: str = "make it again") -> dict[str, Any]:
    """The JSON object in a file; advice: what to do about one that is damaged."""
    text = read_text(path, error, most)
    with report_damage(short(path), error, advice):
        return dict[str, Any]({**json.loads(text)})


def read_yaml(path: Path, error: type[SinkscopeError]) -> dict[str, Any]:
    """The mapping in a YAML file."""
    value, _ = parse_yaml(read_text(path, error), str(path), error)
    with report_damage(short(path), error):
        return dict[str, Any]({**value})


def parse_yaml(source: str, where: str, error: type[SinkscopeError]) -> tuple[Any, dict[Location, int]]:
    """Plain values of a YAML text, and the line of every one of them."""
    lines: dict[Location, int] = {}
    depth = 0
    with report_damage(where, error, "correct it"):
        for event in yaml.parse(source, Loader=Loader):  # events come one by one, without recursion
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise error(f"{where}: values are nested too deep; write them out flat.")
        loader = Loader(source)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, lines
            _note_lines(node, (), lines, where, error)
            return loader.construct_document(node), lines
        finally:
            loader.dispose()


def _note_lines(
    node: yaml.Node, path: Location, lines: dict[Location, int], where: str, error: type[SinkscopeError]
) -> None:
    """The line of every value; what an alias names is walked each time that it is named."""
    if len(path) > DEEPEST or len(lines) > MOST_VALUES:
        raise error(f"{where}: too many values, with aliases written out; leave some out.")
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            if not isinstance(key, yaml.ScalarNode) or inner in lines:
                wrong = "is a duplicate key" if inner in lines else "must be a plain word"
                raise error(f"{where}, line {key.start_mark.line + 1}: {short(key.value)} {wrong}; correct it.")
            _note_lines(value, inner, lines, where, error)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_lines(value, (*path, index), lines, where, error)


# ---- sentences about files


def describe_error(error: BaseException) -> str:
    """Why, in a few printable words."""
    if isinstance(error, OSError) and error.strerror:
        return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
    if isinstance(error, RecursionError):
        return "values stand too deep inside each other"
    if isinstance(error, MemoryError):
        return "it would need more memory than there is"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return short(f"{type(error).__name__}: {' '.join(lines[:2])}".removesuffix(": ")).rstrip(".")


def one_line(text: str) -> str:
    """Text from elsewhere for a line of its own: nothing in it steers a terminal."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def short(value: object, most: int = 240) -> str:
    """A path, a name or a value in a sentence: one line, printable, not too long."""
    line = one_line(str(value))
    return line if len(line) <= most else f"{line[: most // 2]}…{line[-most // 2 :]}"
