"""Models that were scored on the same true answers, side by side: what one masked key per head costs each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.study.analysis.rows import Likelihood

# Random keys are drawn until they have the top key's mass; where one key draws half of the attention there are not enough.
TOP = {"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all"}
# What is masked, by what the condition says; rules go by their names.
KEYS: Mapping[str, Mapping[str, Any]] = {
    "top key": TOP,
    "strong sink": {**TOP, "above": "head_share"},
    "structural key": {**TOP, "kinds": "structural"},
    "content key": {**TOP, "kinds": "content"},
    "weak top key": {**TOP, "below": "head_share"},
    "random, ≤ its mass": {**TOP, "name": "mask_random", "match": "mass"},
    "random, as many": {**TOP, "name": "mask_random", "match": "count"},
    "position 0": {"name": "mask_positions", "positions": [0], "since": "second"},
}


@dataclass(frozen=True)
class Line:
    """What was masked, and the row of each model that it was masked in."""

    name: str
    rows: Mapping[str, Likelihood]


def models_of(rows: Sequence[Likelihood]) -> dict[str, str]:
    """ARM or DLM, by model, of those that were scored on true answers."""
    return {row.model: "ARM" if row.causal else "DLM" for row in rows if row.of == "answers"}


def lines(rows: Sequence[Likelihood]) -> Iterator[Line]:
    """Every kind of masked key that some model was scored under."""
    scored = [row for row in rows if row.of == "answers"]
    for name, wanted in KEYS.items():
        if found := {row.model: row for row in scored if says(row.condition) == wanted}:
            yield Line(name, found)


def says(condition: Mapping[str, Any]) -> dict[str, Any]:
    """A condition without what it leaves open, rules by their names."""
    named = {key: value.get("rule") if isinstance(value, Mapping) else value for key, value in condition.items()}
    return {key: value for key, value in named.items() if value not in (None, 0)}
