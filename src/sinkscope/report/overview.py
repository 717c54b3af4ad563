"""What the overview shows: findings in sentences, cells, token shares, classes of heads, curves over epsilon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkscope.errors import ReportError
from sinkscope.report.sample import head_classes
from sinkscope.sinks import sweep, token_shares
from sinkscope.tracing import Trace

FAMILIES = ("mmada", "llada", "dream", "llama")
EPSILONS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
CLASSES = ("static", "moving", "flash", "split", "none")
Rows = list[dict[str, Any]]


def empty() -> dict[str, Any]:
    """An overview of nothing."""
    return {"findings": [], "cells": [], "tokens": [], "curves": [], "classes": [], "facts": [], "paper": {}}


def overview(run: Path, traces: Sequence[Trace]) -> dict[str, Any]:
    """All of the overview; parts for which the run has nothing are empty."""
    results, about = _read(run / "results.json"), _read(run / "run.json")
    cells = [cell for cell in results.get("cells", []) if isinstance(cell.get("condition"), dict)]
    by_model = _by_model(traces)
    tokens = results.get("tokens") or [row for model, some in by_model.items() for row in _tokens(model, some)]
    return {
        "findings": findings(results.get("verdicts", []), cells),
        "cells": cells,
        "tokens": tokens,
        "curves": [row for model, some in by_model.items() for row in _curves(model, some)],
        "classes": [_classes(model, some) for model, some in by_model.items()],
        "facts": _facts({**results.get("run", {}), **about}),
        "paper": {model: known for model in _models(cells) if (known := paper_values(model))},
    }


def findings(verdicts: Sequence[dict[str, Any]], cells: Rows) -> Rows:
    """Sentences: the study's verdicts, then what masking did to each model against the equal random control."""
    said = [
        {"model": verdict.get("model"), "text": f"{_title(verdict.get('name', ''))}: {_plain(verdict.get('value'))}. "
         f"{verdict.get('because', '')}".strip()}
        for verdict in verdicts
    ]  # fmt: skip
    return said + [line for model in _models(cells) for line in _masking_sentences(model, cells)]


def _masking_sentences(model: str, cells: Rows) -> Rows:
    """One sentence a model, over all its tasks together; the table has each task for itself."""
    mine = [cell for cell in cells if cell.get("model") == model]
    none = _pooled([cell for cell in mine if cell["condition"].get("name") == "none"])
    if none is None:
        return []
    parts = []
    for k in sorted({int(cell["condition"].get("k") or 0) for cell in mine} - {0}):
        at_k = [cell for cell in mine if cell["condition"].get("k") == k]
        sinks = _pooled([cell for cell in at_k if cell["condition"].get("name") == "mask_sinks" and _whole(cell)])
        control = _pooled([cell for cell in at_k if cell["condition"].get("name") == "mask_random"])
        if sinks is not None:
            beside = f" ({_percent(control)} without as many random keys)" if control else ""
            parts.append(f"{_percent(sinks)} without {'its largest sink' if k == 1 else f'{k} sinks'}{beside}")
    if not parts:
        return []
    return [{"model": model, "text": f"right on {_percent(none)} of {none[1]} problems; {'; '.join(parts)}."}]


def _pooled(cells: Rows) -> tuple[int, int] | None:
    """Right answers and problems over some cells; None if one of them does not say."""
    counted = [(cell.get("correct"), cell.get("n")) for cell in cells]
    if not counted or any(right is None or not n for right, n in counted):
        return None
    return sum(int(right or 0) for right, _ in counted), sum(int(n or 0) for _, n in counted)


def _percent(pooled: tuple[int, int]) -> str:
    return f"{100 * pooled[0] / pooled[1]:.1f} %"


def _whole(cell: dict[str, Any]) -> bool:
    """The plain reading of the experiment; its variants are in the table."""
    condition = cell["condition"]
    return str(condition.get("rank") or "clean") == "clean" and str(condition.get("rows") or "all") == "all"


def _title(name: str) -> str:
    return str(name).replace("_", " ").capitalize()


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("_", " ")


def _models(cells: Rows) -> list[str]:
    return list(dict.fromkeys(str(cell.get("model")) for cell in cells))


def paper_values(model: str) -> dict[str, dict[int, float]]:
    """The paper's accuracies for the family that a model's name tells: task → K → accuracy."""
    from sinkscope.tasks.table1 import PAPER

    family = next((name for name in FAMILIES if name in model.lower()), None)
    return {task: values for (name, task), values in PAPER.items() if name == family}


def _by_model(traces: Sequence[Trace]) -> dict[str, list[Trace]]:
    found: dict[str, list[Trace]] = {}
    for trace in traces:
        if not trace.interventions:  # what a changed model does is no finding about the model
            found.setdefault(str(trace.model.get("name", "model")), []).append(trace)
    return found


def _tokens(model: str, traces: Sequence[Trace]) -> Rows:
    rows = token_shares(traces).head(12).select("token", "kind", "share", "base", "enrichment").to_dicts()
    return [{"model": model, **row} for row in rows if row["share"]]


def _curves(model: str, traces: Sequence[Trace]) -> Rows:
    """Share of non-sinks against epsilon over all of a model's traces together."""
    counts: dict[tuple[str, float], list[int]] = {}
    for trace in traces:
        units = ("uniform", "percent") if trace.causal else ("sum", "percent")
        for row in sweep(trace, EPSILONS, units).iter_rows(named=True):
            entry = counts.setdefault((row["unit"], row["epsilon"]), [0, 0])
            entry[0] += row["sinks"]
            entry[1] += row["keys"]
    # Bidirectional sums and autoregressive multiples of the uniform share are the same scale: one chart for both.
    names = {"sum": "sum, or × uniform if autoregressive", "uniform": "sum, or × uniform if autoregressive"}
    return [
        {"model": model, "unit": names.get(unit, unit), "epsilon": epsilon, "nonSinks": 1 - sinks / max(1, keys)}
        for (unit, epsilon), (sinks, keys) in counts.items()
    ]


def _classes(model: str, traces: Sequence[Trace]) -> dict[str, Any]:
    names = [name for trace in traces for name, _ in head_classes(trace)]
    shares = {kind: names.count(kind) / max(1, len(names)) for kind in CLASSES}
    return {"model": model, **shares, "generations": len(traces)}


def _facts(about: dict[str, Any]) -> list[list[str]]:
    """Plain facts of run.json, one a line; what is nested deeper than one level is written as JSON."""
    lines = []
    for name, value in about.items():
        if value is None or value in ({}, [], ""):
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append([str(name).replace("_", " "), text[:300]])
    return lines


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path.name} of the run is not readable JSON ({error}); run the study again.") from None
    if not isinstance(found, dict):
        raise ReportError(f"{path.name} of the run must hold an object, and it holds a {type(found).__name__}.")
    return found
