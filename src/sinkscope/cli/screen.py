"""What commands print with: results to stdout, progress and errors to stderr, JSON where it is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from sinkscope.errors import printable

if TYPE_CHECKING:
    from rich.status import Status
    from rich.table import Table


def output() -> Console:
    """stdout; plain where it is piped."""
    return Console(highlight=False)


def waiting(what: str) -> Status:
    """A spinner on stderr while something takes its time; nothing where that is not a terminal."""
    return Console(stderr=True).status(printable(what))


def say_error(sentence: str) -> None:
    """One line on stderr, whole: it may be read by another program, so it is not wrapped or coloured there."""
    with suppress(OSError, ValueError):  # nobody may be listening there
        print(printable(f"sinkscope: {' '.join(sentence.split())}"), file=sys.stderr, flush=True)


def say_line(text: str) -> None:
    """One line on stderr that is no error: what a command is about to do."""
    say_error(text)


def print_text(text: str) -> None:
    """Text on stdout as it is: names and answers of models may stand in it."""
    output().print(printable(text), markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """JSON in ASCII, which every stream can write and which steers no terminal."""
    print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


def print_result(as_json: bool, value: Any, text: str) -> None:
    """What a command found, in the form that was asked for."""
    if as_json:
        print_json(value)
    else:
        print_text(text)


def tell_shard(folder: Path, shard: str, as_json: bool) -> None:
    """What to do when a shard is finished."""
    text = f"Shard {shard} is in {folder}. When all are there: sinkscope merge {folder} … --out FOLDER"
    print_result(as_json, {"folder": str(folder), "shard": shard, "results": None}, text)


def table_of(rows: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Rows under the names of their fields; text of a file or a model is never markup, and steers no terminal."""
    from rich.table import Table
    from rich.text import Text

    def write_value(value: Any) -> Text:
        text = "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
        return value if isinstance(value, Text) else Text(printable(text))

    # A title is as wide as its table and would be folded, so a narrow table gets room for it.
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, min_width=len(title) or None)
    for name in rows[0] if rows else ():
        # Numbers are never folded; what a token is must stay in sight at 80 columns.
        number = any(isinstance(row[name], int | float) for row in rows)
        side: Literal["left", "right"] = "right" if number else "left"
        table.add_column(name, justify=side, overflow="fold", no_wrap=number, min_width=4 if title else None)
    for row in rows:
        table.add_row(*map(write_value, row.values()))
    return table
