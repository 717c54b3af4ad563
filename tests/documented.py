"""Tables of the docs, rows of committed runs, and whether a written figure is the measured one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
NUMBER = re.compile(r"[−+-]?(?:\d[\d,]*\d|\d)?\.?\d+")


@cache
def read(path: str) -> Any:
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


def rows_of(run: str) -> list[dict[str, Any]]:
    return [*read(run)["cells"], *read(run).get("pooled", [])]


def row(run: str, model: str, label: str, task: str = "all") -> dict[str, Any]:
    """The one row of a run with this label; `all` pools its tasks."""
    (found,) = (
        one for one in rows_of(run)
        if (one["model"], one["label"], one["task"]) == (model, label, task)
    )  # fmt: skip
    return found


def change(found: dict[str, Any]) -> list[float]:
    """Points, and their interval."""
    return [100 * found[name] for name in ("difference", "difference_low", "difference_high")]


def dynamics(run: str, model: str, condition: str = "none") -> dict[str, Any]:
    (found,) = (one for one in read(run)["dynamics"] if (one["model"], one["condition"]) == (model, condition))
    return found


def table(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose head begins so, without the rule."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(f"| {first} |".replace("|  |", "| |")))
    end = next(
        place for place in range(start, len(lines) + 1) if place == len(lines) or not lines[place].startswith("|")
    )
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines[start:end] if line[1] != "-"]


def numbers(text: str) -> list[str]:
    """The figures of a text, as they are written."""
    return NUMBER.findall(text)


def same(written: str, measured: Sequence[float], what: str = "") -> None:
    """Every figure of the text is the measured one, to the digits that are written; signs only where there is one."""
    found = numbers(written)
    assert len(found) == len(measured), (what, written, measured)
    for one, other in zip(found, measured, strict=True):
        digits = len(one.partition(".")[2])
        signed = float(one.replace("−", "-").replace(",", ""))
        value = other if one[0] in "−+-" else abs(other)
        assert abs(signed - value) <= 0.5 * 10.0**-digits * 1.001 + 1e-9, (what, written, one, other)
