"""Robust, dependent or undecided: on which side of the margin the whole interval of a difference lies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from sinkscope.statistics import problems_needed
from sinkscope.study.analysis.rows import Cell, PooledCell

Said = Literal["robust", "dependent", "undecided"]
LEVEL = 0.05  # of p


class Tested(Protocol):
    """A comparison on the same problems."""

    @property
    def n(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def won(self) -> int: ...
    @property
    def difference_low(self) -> float: ...
    @property
    def difference_high(self) -> float: ...


@dataclass(frozen=True)
class Decision:
    """What an interval says, and how many problems it would take where it says nothing."""

    said: Said
    needed: str = ""

    def __str__(self) -> str:
        return f"undecided ({self.needed})" if self.said == "undecided" else self.said


def decide(row: Tested, margin: float, p_primary: float | None = None) -> Decision:
    """margin: in shares. Robust: the lower end is above −margin. Dependent: the upper end is below it.

    A primary comparison is dependent only if its p, corrected over all primary ones, says so too.
    """
    if row.difference_low > -margin:
        return Decision("robust")
    if row.difference_high < -margin and (p_primary is None or p_primary < LEVEL):
        return Decision("dependent")
    needed = problems_needed(row.lost, row.won, row.n, margin)
    if needed is None:
        return Decision("undecided", "the loss is about the margin")
    return Decision("undecided", f"needs about n = {max(needed, row.n + 1)} problems")


def able(row: PooledCell) -> PooledCell:
    """A pooled row over those tasks only that the model can do; as it is if it can do none."""
    return replace(row, **vars(row.able)) if row.able is not None else row


def plain(row: Cell) -> bool:
    """Masked sinks ranked by all or by the last row, with nothing further said."""
    return row.condition["name"] == "mask_sinks" and set(row.condition) <= {"name", "k", "rank", "rows"}
