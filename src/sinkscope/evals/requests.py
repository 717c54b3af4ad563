"""Requests of the harness: checked as they come in, batched, and kept on disk as they are answered.

A finished request is one JSON line: kill −9 anywhere, run again, and none is redone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import TaskError
from sinkscope.fields import Allowed, need, whole

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


def key(**parts: Any) -> str:
    """Name of a request: a hash of everything that its answer depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Answers:
    """A dictionary of finished requests that only grows; without a path it lives in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._found: dict[str, dict[str, Any]] = {}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._read(path)

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            # The process was killed while it wrote: the torn line goes, so that the next one starts on its own.
            with path.open("r+b") as file:
                file.truncate(whole)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not _is_finished(record):
                raise TaskError(
                    f"Expected a finished request in line {number} of {path}, got something else; take another folder."
                )
            self._found[record["key"]] = record

    def get(self, name: str) -> dict[str, Any] | None:
        return self._found.get(name)

    def starting(self, prefix: str) -> list[dict[str, Any]]:
        return [record for name, record in self._found.items() if name.startswith(prefix)]

    def add_all(self, answers: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Keep the answers of a batch, in one piece; when this returns, a kill of the process cannot lose them."""
        records = [{"key": name, **values} for name, values in answers]
        self._found |= {record["key"]: record for record in records}
        if self.path is not None and records:
            with self.path.open("ab") as file:
                file.write(b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records))


# What a record must hold, by what it is: a generation, a likelihood, or what an intervention took away in a batch.
KINDS: tuple[dict[str, Any], ...] = (
    {"text": str},
    {"value": int | float, "error": int | float, "greedy": bool},
    dict.fromkeys(("keys", "keys_seen", "mass", "mass_seen", "leak"), int | float),
)
LISTS = ("ids", "steps")  # of a generation, where they are kept


def _is_finished(record: Any) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("key"), str):
        return False
    lists = [record[name] for name in LISTS if name in record]
    plain = all(isinstance(one, list) and all(type(value) is int for value in one) for one in lists)
    return plain and any(all(isinstance(record.get(name), kind) for name, kind in one.items()) for one in KINDS)


# ---- what the harness hands in


def count(name: str, value: Any, least: int) -> int:
    need(name, value, Allowed(whole(least).expected, whole(least, (1 << 63) - 1)), TaskError)
    return int(value)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TaskError(f"Expected the text of a request, got {type(value).__name__}; is the task's doc_to_text right?")
    return value


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TaskError(f"Expected generation settings such as until and max_gen_toks, got {type(value).__name__}.")
    return dict(value)


def stops(until: Any) -> list[str]:
    """Stop strings: one, several or none. A number would never be found in a text, so that it is refused."""
    several = [] if until is None else [until] if isinstance(until, str) else until
    if not isinstance(several, list | tuple) or any(not isinstance(stop, str) for stop in several):
        raise TaskError(f"Expected stop strings in until, such as ['\\n\\n'], got {until!r}; put quotes round numbers.")
    return [stop for stop in several if stop]


def longest(asked: Any) -> int | None:
    """The length that a task wishes for; YAML and command lines may give it as text."""
    if asked is None:
        return None
    text = str(asked)
    if isinstance(asked, bool) or not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 1 << 31:
        raise TaskError(f"Expected max_gen_toks as a whole number of at least 1, got {asked!r}.")
    return int(text)


def size_of_batch(batch_size: int | str | None, most: int | None) -> int:
    """The harness hands `None` or "auto" on where nobody gave a batch size."""
    asked = "8" if batch_size is None or str(batch_size).startswith("auto") else str(batch_size)
    if not (asked.isascii() and asked.isdecimal() and int(asked)):
        raise TaskError(f"Expected a batch size of at least 1, or auto, got {batch_size!r}.")
    return max(1, min(int(asked), most or int(asked)))


def occurrences(requests: list[Instance]) -> list[int]:
    """Of each request, how often the same object came before: the harness asks for repeats by handing it in again."""
    seen: Counter[int] = Counter()
    counted = []
    for request in requests:
        counted.append(seen[id(request)])
        seen[id(request)] += 1
    return counted


def batched(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Names in their order, so many at a time; the last batch may have fewer."""
    for start in range(0, len(names), size):
        yield names[start : start + size]
