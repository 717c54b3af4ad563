"""Models that were scored on the same true answers: what the overview says of them, and shows beside its live figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from sinkscope.study.analysis import pair
from sinkscope.study.analysis.rows import Likelihood

SHOWN = ("difference", "difference_low", "difference_high", "mass_share", "n")


def scored_pair(rows: Sequence[Likelihood]) -> dict[str, Any]:
    """What one masked key per head costs each model, in nats per token, line by line."""
    return {
        "models": [{"name": name, "kind": kind} for name, kind in pair.models_of(rows).items()],
        "lines": [
            {
                "name": line.name,
                "values": {model: {key: getattr(row, key) for key in SHOWN} for model, row in line.rows.items()},
            }
            for line in pair.lines(rows)
        ],
    }


def likelihood_rows(rows: Sequence[dict[str, Any]]) -> list[Likelihood]:
    """Rows of results.json that are whole; a run made by hand may hold others."""
    needed = {field.name for field in fields(Likelihood) if field.default is MISSING}
    known = {field.name for field in fields(Likelihood)}
    return [Likelihood(**{key: row[key] for key in known & set(row)}) for row in rows if needed <= set(row)]


def without_sinks(rows: Sequence[Likelihood]) -> str:
    """The paper's contrast in one sentence, where an autoregressive and a diffusion model were scored on the same answers."""
    kinds = {kind: model for model, kind in reversed(pair.models_of(rows).items())}
    top = next((line.rows for line in pair.lines(rows) if line.name == "top key"), {})
    if set(kinds) != {"ARM", "DLM"} or not set(kinds.values()) <= set(top):
        return ""
    arm, dlm = (f"{kinds[kind]} {_change(top[kinds[kind]])}" for kind in ("ARM", "DLM"))
    return f" Without the top key of every head {arm} nats per token of true answers, {dlm}."


def _change(row: Likelihood) -> str:
    span = sorted((abs(row.difference_low), abs(row.difference_high)))
    if row.difference_low <= 0 <= row.difference_high:
        return f"changes by {row.difference:+.2f} [{row.difference_low:+.2f}, {row.difference_high:+.2f}]"
    return f"{'loses' if row.difference < 0 else 'gains'} {abs(row.difference):.2f} [{span[0]:.2f}, {span[1]:.2f}]"
