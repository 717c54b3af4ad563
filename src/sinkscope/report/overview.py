"""What the overview shows: findings in sentences, cells, token shares, classes of heads, curves over epsilon.

Everything is taken from results.json where the study says it; token shares, classes and curves are worked out from the
traces where it does not (a run made by hand, or by `table1`).
"""

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
SHOWN_FACTS = ("study", "about", "seed", "version", "versions", "backend", "machine", "units", "started", "seconds")
Rows = list[dict[str, Any]]


def empty() -> dict[str, Any]:
    """An overview of nothing."""
    return {"findings": [], "cells": [], "tokens": [], "curves": [], "classes": [], "facts": [], "paper": {}}


def overview(run: Path, traces: Sequence[Trace]) -> dict[str, Any]:
    """All of the overview; parts for which the run has nothing are empty."""
    results, about = read(run / "results.json"), read(run / "run.json")
    cells = [_faceted(cell) for cell in [*results.get("pooled", []), *results.get("cells", [])] if "condition" in cell]
    plain = _by_model(traces)
    tokens = [_faceted(row) for row in results.get("tokens", []) if row.get("condition", "none") == "none"]
    classes = [_faceted(row) for row in results.get("dynamics", []) if set(CLASSES) <= set(row)]
    curves = [_faceted(row) for row in results.get("curves", []) if row.get("condition", "none") == "none"]
    return {
        "findings": findings(results.get("verdicts", []), cells),
        "cells": cells,
        "tokens": tokens or [row for model, some in plain.items() for row in _tokens(model, some)],
        "curves": [
            {"model": row["model"], "unit": row["unit"], "epsilon": row["epsilon"], "nonSinks": row["non_sinks"]}
            for row in curves
        ]
        or [row for model, some in plain.items() for row in _curves(model, some)],
        "classes": classes or [_classes(model, some) for model, some in plain.items()],
        "facts": facts({**results.get("run", {}), **about}),
        "paper": {model: known for model, family in _families(cells).items() if (known := paper_values(family))},
    }


def _faceted(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose model's name carries the decode setting and the condition, where a study has several."""
    condition = row.get("condition")
    extra = [row.get("setting"), condition if isinstance(condition, str) and condition != "none" else ""]
    return {**row, "model": " · ".join(str(part) for part in (row.get("model", "model"), *extra) if part)}


def findings(verdicts: Sequence[dict[str, Any]], cells: Rows) -> Rows:
    """Sentences a model: what masking did to it against the equal random control, then the study's verdicts."""
    said: Rows = []
    models = [*(str(verdict.get("model")) for verdict in verdicts), *(cell["model"] for cell in cells)]
    for model in dict.fromkeys(models):
        said += _masking_sentence(model, cells)
        for verdict in verdicts:
            if str(verdict.get("model")) == model:
                name, value = str(verdict.get("name", "")).replace("_", " "), plain(verdict.get("value"))
                said.append({"model": model, "verdict": f"{name}: {value}", "text": str(verdict.get("because", ""))})
    return said


def _masking_sentence(model: str, cells: Rows) -> Rows:
    """One sentence over all tasks together; the table has each task for itself."""
    mine = [cell for cell in cells if cell["model"] == model]
    mine = [cell for cell in mine if cell.get("task") == "all"] or mine
    none = _pooled([cell for cell in mine if cell["condition"].get("name") == "none"])
    if none is None:
        return []
    parts = []
    for k in sorted({int(cell["condition"].get("k") or 0) for cell in mine} - {0}):
        at_k = [cell for cell in mine if cell["condition"].get("k") == k and _usual(cell["condition"])]
        sinks = _pooled([cell for cell in at_k if cell["condition"].get("name") == "mask_sinks"])
        control = _pooled([cell for cell in at_k if cell["condition"].get("name") == "mask_random"])
        if sinks is not None:
            beside = f" ({_percent(control)} without as many random keys)" if control else ""
            parts.append(f"{_percent(sinks)} without {'its largest sink' if k == 1 else f'{k} sinks'}{beside}")
    said = "; ".join([f"Right on {_percent(none)} of {none[1]} problems", *parts])
    return [{"model": model, "verdict": "", "text": f"{said}."}]


def _usual(condition: dict[str, Any]) -> bool:
    """The plain reading of the experiment; its variants are in the table."""
    usual = {"rank": "clean", "rows": "all", "match": "count", "above": None, "keep_self": None}
    return all((condition.get(name) or default) == default for name, default in usual.items())


def _pooled(cells: Rows) -> tuple[int, int] | None:
    """Right answers and problems over some cells; None if one of them does not say."""
    counted = [(cell.get("correct"), cell.get("n")) for cell in cells]
    if not counted or any(right is None or not n for right, n in counted):
        return None
    return sum(int(right or 0) for right, _ in counted), sum(int(n or 0) for _, n in counted)


def _percent(pooled: tuple[int, int]) -> str:
    return f"{100 * pooled[0] / pooled[1]:.1f} %"


def plain(value: Any) -> str:
    """A verdict's value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("_", " ")


def _families(cells: Rows) -> dict[str, str]:
    """Model → family, as the study says it or as the name tells."""
    return {cell["model"]: str(cell.get("family") or family_of(cell["model"])) for cell in cells}


def family_of(model: str) -> str:
    return next((name for name in FAMILIES if name in model.lower()), "")


def paper_values(family: str) -> dict[str, dict[int, float]]:
    """The paper's accuracies for a family: benchmark → K → accuracy."""
    from sinkscope.paper import TABLE_1

    return {task: values for (name, task), values in TABLE_1.items() if name == family}


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


def facts(about: dict[str, Any]) -> list[list[str]]:
    """Plain facts of run.json, one a line: the run, then a line a model."""
    lines = []
    for name in SHOWN_FACTS:
        value = about.get(name)
        if isinstance(value, dict):
            value = ", ".join(f"{key} {word}" for key, word in value.items() if isinstance(word, str | int | float))
        if value not in (None, "", [], {}):
            lines.append([name.replace("_", " "), str(value)[:300]])
    for model in about.get("models", []):
        if isinstance(model, dict):
            known = model.get("identity", {})
            words = [
                f"{name} {known[name]}"
                for name in ("family", "parameters", "layers", "heads", "dtype")
                if name in known
            ]
            lines.append([str(model.get("name", "model")), ", ".join([*words, str(known.get("fingerprint", ""))[:16]])])
    return lines


def read(path: Path) -> dict[str, Any]:
    """A JSON object of a run; empty if the file is not there."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path.name} of the run is not readable JSON ({error}); run the study again.") from None
    if not isinstance(found, dict):
        raise ReportError(f"{path.name} of the run must hold an object, and it holds a {type(found).__name__}.")
    return found
