"""Finished requests, kept on disk as they are answered: kill −9 anywhere, run again, and none is redone."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sinkscope.errors import TaskError


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
            os.truncate(path, whole)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                record = json.loads(line)
                self._found[str(record["key"])] = record
            except (ValueError, KeyError, TypeError):
                raise TaskError(
                    f"Expected a finished request in line {number} of {path}, got something else; take another folder."
                ) from None

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
