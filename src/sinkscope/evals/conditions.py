"""Conditions of a benchmark run: from the words of a command line, as the grid of Table 1, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from sinkscope.errors import TaskError

if TYPE_CHECKING:
    from sinkscope.interventions.conditions import Condition
    from sinkscope.interventions.memory import Rank


def grid(causal: bool, ks: Sequence[int] = (1, 5, 10)) -> list[Condition]:
    """Nothing, then for each k the sinks by both rankings and count-matched random keys.

    An autoregressive model is ranked by its last row, as in the paper, and by all rows; since the last row also ranks
    content keys, masking position 0 alone stands beside them.
    """
    from sinkscope.interventions.conditions import Condition

    found = [Condition("none")]
    if causal:
        found.append(Condition("mask_positions", positions=(0,)))
    for k in ks:
        if k < 1:
            raise TaskError(f"Expected numbers of sinks of at least 1 (0 is always run), got {k}.")
        for rows in ("last", "all") if causal else ("all",):
            found += [Condition("mask_sinks", k, rank, rows) for rank in ("clean", "as_run")]
            found.append(Condition("mask_random", k, "clean", rows))
    return found


def made_of_words(mask_sinks: int | None = None, mask_random: int | None = None, rank: str | None = None) -> Any:
    """The intervention that the words of a command line name; None for none. rank: clean by default."""
    from sinkscope.interventions import MaskRandom, MaskSinks

    if mask_sinks and mask_random:
        raise TaskError("Expected mask_sinks or mask_random, got both; a control is a run of its own.")
    if rank is not None and not mask_sinks:
        raise TaskError("rank says how sinks are ranked and would have no effect without mask_sinks; leave it out.")
    if mask_sinks:
        return MaskSinks(k=mask_sinks, rank=cast("Rank", rank or "clean"))
    return MaskRandom(k=mask_random) if mask_random else None


def as_list(intervention: Any) -> list[Any]:
    """None, one intervention or several, as a list."""
    if intervention is None:
        return []
    return list(intervention) if isinstance(intervention, (list, tuple)) else [intervention]


def described(intervention: Any) -> list[dict[str, Any]]:
    """Name and every setting of each intervention."""
    return [one.to_dict() for one in as_list(intervention)]
