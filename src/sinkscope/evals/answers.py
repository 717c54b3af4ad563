"""Finished requests, kept on disk as they are answered: kill −9 anywhere, run again, and none is redone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sinkscope.errors import TaskError


def key(**parts: Any) -> str:
    """Name of a request: a hash of everything that its answer depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Answers(dict[str, dict[str, Any]]):
    """Finished requests by their names, which only become more; without a path they live in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.path = path
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
            self[record["key"]] = record

    def add_all(self, answers: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Keep the answers of a batch, in one piece; when this returns, a kill of the process cannot lose them."""
        records = [{"key": name, **values} for name, values in answers]
        self.update({record["key"]: record for record in records})
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
