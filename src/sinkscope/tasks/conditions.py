"""Conditions of a benchmark run: from the words of a command line, as the grid of Table 1, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from sinkscope.errors import TaskError

if TYPE_CHECKING:
    from sinkscope.interventions import Intervention
    from sinkscope.interventions.memory import Rank


@dataclass(frozen=True)
class Condition:
    """One column of Table 1: what is taken away, under the words that name it in results."""

    name: str  # none, mask_sinks, mask_random or mask_positions
    k: int = 0
    rank: str | None = None
    rows: str | None = None
    intervention: Intervention | None = None

    @property
    def label(self) -> str:
        """A folder's name."""
        parts = [self.name, f"k{self.k}" if self.k else "", self.rank or "", self.rows or ""]
        return "-".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "k": self.k, "rank": self.rank, "rows": self.rows}


def grid(causal: bool, ks: Sequence[int] = (1, 5, 10), seed: int = 0) -> list[Condition]:
    """Nothing, then for each k the sinks by both rankings and as many random keys.

    An autoregressive model is ranked by its last row, as in the paper, and by all rows; since the last row also ranks
    content keys, masking position 0 alone stands beside them.
    """
    from sinkscope.interventions import MaskPositions, MaskRandom, MaskSinks

    found = [Condition("none")]
    if causal:
        found.append(Condition("mask_positions", 1, intervention=MaskPositions((0,))))
    every_row: tuple[Literal["all", "last"], ...] = ("last", "all") if causal else ("all",)
    for k in ks:
        if k < 1:
            raise TaskError(f"Expected numbers of sinks of at least 1 (0 is always run), got {k}.")
        for rows in every_row:
            for rank in ("clean", "as_run"):
                mask = MaskSinks(k=k, rank=rank, rows=rows)
                found.append(Condition("mask_sinks", k, rank, rows, mask))
            control = MaskRandom(k=k, seed=seed, rows=rows)
            found.append(Condition("mask_random", k, None, rows, control))
    return found


def made_of_words(mask_sinks: int | None = None, mask_random: int | None = None, rank: str = "clean") -> Any:
    """The intervention that the words of a command line name; None for none."""
    from sinkscope.interventions import MaskRandom, MaskSinks

    if mask_sinks and mask_random:
        raise TaskError("Expected mask_sinks or mask_random, got both; a control is a run of its own.")
    if mask_sinks:
        return MaskSinks(k=mask_sinks, rank=cast("Rank", rank))
    return MaskRandom(k=mask_random) if mask_random else None


def as_list(intervention: Any) -> list[Any]:
    """None, one intervention or several, as a list."""
    if intervention is None:
        return []
    return list(intervention) if isinstance(intervention, (list, tuple)) else [intervention]


def described(intervention: Any) -> list[dict[str, Any]]:
    """Name and every setting of each intervention."""
    return [one.to_dict() for one in as_list(intervention)]
