"""What commands print with: results to stdout, progress and errors to stderr, JSON where it is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def output() -> Console:
    """stdout; plain where it is piped."""
    return Console(highlight=False)


def progress() -> Console:
    """stderr, so that a result that is piped on stays clean."""
    return Console(stderr=True, highlight=False)


def say_error(sentence: str) -> None:
    """One line on stderr, whole: it may be read by another program, so it is not wrapped or coloured there."""
    print(f"sinkscope: {printable(sentence)}", file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner while something takes its time; nothing where stderr is not a terminal."""
    console = progress()
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def printable(text: str) -> str:
    """Text of a model or a file, with nothing in it that could steer the terminal."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "�" for sign in text)
