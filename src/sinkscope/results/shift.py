"""How far a condition moved the answers, whether or not they became wrong; and beyond as many random keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sinkscope.results.rows import Cell

METRICS = ("changed", "first_change", "reordered", "same_verdict", "kl", "flipped")
Record = Mapping[str, Any]  # a stored answer: text, tokens and, of a diffusion model, steps
Key = tuple[str, str, str]  # model, task, label of the condition


def with_shifts(
    cells: Sequence[Cell], answers: Mapping[Key, Mapping[int, Record]], divergences: Mapping[Key, Sequence[Record]]
) -> list[Cell]:
    """The cells, each changed one with its shift; divergences: of the logits along the unmasked path, where measured."""
    shifts: dict[Key, dict[str, Any]] = {}
    for cell in cells:
        key, base = (cell.model, cell.task, cell.label), answers.get((cell.model, cell.task, "none"))
        if cell.label != "none" and base and key in answers:
            measured = divergences.get(key, ())
            more = {name: mean([row[name] for row in measured]) for name in ("kl", "flipped")} if measured else {}
            shifts[key] = {**measure_shift(base, answers[key]), **more}
    return [_with_shift(cell, cells, shifts) for cell in cells]


def _with_shift(cell: Cell, cells: Sequence[Cell], shifts: Mapping[Key, dict[str, Any]]) -> Cell:
    """Masked sinks also get the difference from as many random keys."""
    own = shifts.get((cell.model, cell.task, cell.label))
    if own is None:
        return cell
    control = next((one for one in cells if _is_random_control(one, cell)), None)
    random = None if control is None else shifts.get((control.model, control.task, control.label))
    if cell.condition["name"] == "mask_sinks" and random is not None:
        own = {**own, "minus_random": {name: _less(own.get(name), random.get(name)) for name in METRICS}}
    return replace(cell, shift=own)


def _is_random_control(one: Cell, cell: Cell) -> bool:
    """Whether it masks as many random keys in the same rows of the same model and task."""
    random = one.condition["name"] == "mask_random" and (one.model, one.task) == (cell.model, cell.task)
    return random and all(one.condition.get(name) == cell.condition.get(name) for name in ("k", "rows"))


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def measure_shift(base: Mapping[int, Record], own: Mapping[int, Record]) -> dict[str, Any]:
    """What changed in the answers, whether or not they became wrong: means over problems against the unmasked run.

    changed: share of the answer's tokens that are others, position by position, up to the end of the longer answer.
    first_change: where the first of them stands, as a share of the unmasked answer (1 where nothing changed).
    reordered: share of the pairs of positions that were committed in another order; diffusion models only.
    same_verdict: share of problems whose text changed though both answers are right, or both wrong.
    """
    pairs = [(base[number], own[number]) for number in own]
    rows = [_compare(before, after) for before, after in pairs]
    same = [a["text"] != b["text"] and a["correct"] == b["correct"] for a, b in pairs]
    found = {name: mean([row[name] for row in rows]) for name in ("changed", "first_change", "reordered")}
    return {"n": len(rows), **found, "same_verdict": mean(same)}


def _compare(before: Record, after: Record) -> dict[str, float | None]:
    a, b = list(before["tokens"]), list(after["tokens"])
    longest = max(len(a), len(b))
    other = [x != y for x, y in zip(a, b, strict=False)] + [True] * (longest - min(len(a), len(b)))
    first = other.index(True) if any(other) else longest
    return {
        "changed": sum(other) / longest if longest else 0.0,
        "first_change": min(first / len(a), 1.0) if a else float(not other),
        "reordered": _reordered(before.get("steps"), after.get("steps")),
    }


def _reordered(before: Sequence[int] | None, after: Sequence[int] | None) -> float | None:
    """Share of pairs of positions, in both answers, that changed places in the order of commits."""
    size = min(len(before or ()), len(after or ()))
    if before is None or after is None or size < 2:
        return None
    signs = [np.sign(np.subtract.outer(np.asarray(one[:size]), np.asarray(one[:size]))) for one in (before, after)]
    pairs = np.triu_indices(size, 1)
    return float((signs[0] * signs[1] < 0)[pairs].mean())


def mean(values: Sequence[float | bool | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
