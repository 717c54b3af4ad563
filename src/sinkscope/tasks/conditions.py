"""Interventions of a benchmark run: from the words of a command line, and as plain data for keys and results."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

from sinkscope.errors import TaskError


def made_of_words(mask_sinks: int | None = None, mask_random: int | None = None, rank: str = "clean") -> Any:
    """The intervention that the words of a command line name; None for none."""
    if mask_sinks and mask_random:
        raise TaskError("Expected mask_sinks or mask_random, got both; a control is a run of its own.")
    if not mask_sinks and not mask_random:
        return None
    from sinkscope.interventions import MaskRandom, MaskSinks

    return MaskSinks(k=mask_sinks, rank=rank) if mask_sinks else MaskRandom(k=mask_random)


def as_list(intervention: Any) -> list[Any]:
    """None, one intervention or several, as a list."""
    if intervention is None:
        return []
    return list(intervention) if isinstance(intervention, (list, tuple)) else [intervention]


def described(intervention: Any) -> list[dict[str, Any]]:
    """Name and every setting of each intervention."""
    return [
        {"name": type(one).__name__, **(asdict(one) if is_dataclass(one) and not isinstance(one, type) else {})}
        for one in as_list(intervention)
    ]
