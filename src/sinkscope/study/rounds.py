"""Sequential stopping: problems are asked in rounds, in a random order, until every comparison is decided.

What is asked next follows from stored units alone, so that a run that was killed decides as one that was not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sinkscope.conditions import NONE, Condition
from sinkscope.statistics import confidence_sequence, decided
from sinkscope.study.schema import SequentialPlan, Study
from sinkscope.study.units import Unit

Stored = Callable[[Unit], dict[str, Any] | None]
Group = tuple[str, str, str]  # model, setting, task


@dataclass(frozen=True)
class Decision:
    """A comparison with nothing masked after so many problems: inside the margin, outside of it, or open."""

    condition: Condition
    margin: float  # points
    decision: str
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        return {"margin": self.margin, "decision": self.decision, "low": self.low, "high": self.high}


def plan_round(study: Study, units: Sequence[Unit], stored: Stored) -> tuple[list[Unit], list[Unit]]:
    """The units that count so far, and those of them that must be run next; nothing is left to run when all are decided."""
    assert study.sequential is not None
    counting: list[Unit] = []
    for chunks in group_chunks(units).values():
        longest = 0
        for condition, own in chunks.items():
            used = count_chunks(study, study.sequential, chunks[NONE], own, stored) if condition != NONE else 0
            counting += own[:used]
            longest = max(longest, used)
        counting += chunks[NONE][: longest or first_look(study, study.sequential)]
    return counting, [unit for unit in counting if stored(unit) is None]


def group_chunks(units: Sequence[Unit]) -> dict[Group, dict[Condition, list[Unit]]]:
    """Answers by what is compared: the chunks of each condition, in the order in which problems are asked."""
    found: dict[Group, dict[Condition, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        if unit.kind == "answers":
            found[unit.model, unit.setting, unit.task][unit.condition].append(unit)
    return found


def first_look(study: Study, plan: SequentialPlan) -> int:
    """Chunks of one round."""
    return math.ceil(plan.round / study.chunk)


def count_chunks(study: Study, plan: SequentialPlan, base: Sequence[Unit], own: Sequence[Unit], stored: Stored) -> int:
    """How many chunks a comparison needs: up to the look that decides it, or the one that is next."""
    step = first_look(study, plan)
    for look in range(step, len(own), step):
        changes = answer_changes(base[:look], own[:look], stored)
        if changes is None:
            return look
        inside, outside = decided(np.asarray(changes), plan.margin / 100)
        if inside[-1] or outside[-1]:
            return look
    return len(own)


def answer_changes(base: Sequence[Unit], own: Sequence[Unit], stored: Stored) -> list[float] | None:
    """Per problem 1 where only the condition is right, −1 where only the unmasked model is; None where chunks are missing."""
    changes: list[float] = []
    for before, after in zip(base, own, strict=True):
        pair = stored(before), stored(after)
        if pair[0] is None or pair[1] is None:
            return None
        right: list[Mapping[int, bool]] = [
            {row["problem"]: row["correct"] for row in one["rows"]} for one in pair if one
        ]
        changes += [float(right[1][number]) - float(right[0][number]) for number in right[0]]
    return changes


def decisions(study: Study, units: Sequence[Unit], stored: Stored) -> dict[tuple[Group, Condition], Decision]:
    """How every comparison ended."""
    assert study.sequential is not None
    found = {}
    for group, chunks in group_chunks(units).items():
        for condition, own in chunks.items():
            changes = answer_changes(chunks[NONE][: len(own)], own, stored) if condition != NONE else None
            if changes:
                inside, outside = (bool(one[-1]) for one in decided(np.asarray(changes), study.sequential.margin / 100))
                name = "inside" if inside else "outside" if outside else "open"
                found[group, condition] = Decision(
                    condition, study.sequential.margin, name, *confidence_sequence(changes)
                )
    return found
