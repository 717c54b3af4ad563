"""What part a condition plays in the masking experiment: the page, the tables and the figures read it from here.

A role decides name, colour and mark of a series, the same on every chart: `sinks` is the experiment, `count` and `mass`
are its random controls, the others are variants. An autoregressive model is ranked by its last row, as in the paper,
where the study did that; every other one by whole columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {
    "sinks": "sinks masked",
    "count": "random keys, count-matched",
    "mass": "random keys, mass-matched",
    "as_run": "sinks, ranked on applied attention",
    "other_rows": "sinks, ranked by whole columns",
    "position": "position 0 masked",
}
# Words of a condition that leave it what it is; anything else makes it a variant that only the full table shows.
PLAIN: Mapping[str, Any] = {"per": "head", "above": None, "below": None, "keep_self": None, "kinds": None}
KNOWN = {"name", "k", "rank", "rows", "match", "since", "positions", "for", "draws", "seed"}


def usual_rows(conditions: Sequence[Mapping[str, Any]], causal: bool) -> str:
    """By which rows a model's sinks are ranked in the experiment itself: its last one, or all of them."""
    masked = {str(one.get("rows") or "all") for one in conditions if one.get("name") == "mask_sinks"}
    return "last" if causal and "last" in masked else "all"


def role(condition: Mapping[str, Any], rows: str = "all") -> str | None:
    """The role of a condition for a model whose sinks are ranked by `rows`; None for a variant of no role."""
    extra = {word: value for word, value in condition.items() if word not in KNOWN and value}
    if any(PLAIN.get(word, object()) != value for word, value in extra.items()):
        return None
    name, rank, by = condition.get("name"), condition.get("rank") or "clean", condition.get("rows") or "all"
    if name == "mask_positions":
        return "position" if condition.get("positions") == [0] and condition.get("since") != "first" else None
    if name == "mask_random":
        return str(condition.get("match") or "count") if by == rows and rank == "clean" else None
    if name != "mask_sinks":
        return None
    if by != rows:
        return "other_rows" if rank == "clean" else None
    return "sinks" if rank == "clean" else "as_run"


def with_roles(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells of results.json, each with its `role`."""
    by_model: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        by_model.setdefault(str(cell.get("model")), []).append(cell)
    rows = {
        model: usual_rows([cell["condition"] for cell in some], any(_causal(cell) for cell in some))
        for model, some in by_model.items()
    }
    return [{**cell, "role": role(cell["condition"], rows[str(cell.get("model"))])} for cell in cells]


def _causal(cell: Mapping[str, Any]) -> bool:
    return bool(cell.get("causal", "llama" in str(cell.get("model", "")).lower()))
