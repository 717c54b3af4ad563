"""What the overview shows: the paper's claims against the run, cells, token shares, classes of heads, thresholds.

Everything is taken from results.json where the study says it; token shares, classes and curves are worked out from the
traces where it does not (a run made by hand, or an older one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sinkscope import paper
from sinkscope.errors import ReportError
from sinkscope.io.reading import damaged, read_object, short
from sinkscope.report import method
from sinkscope.report.roles import NAMES as ROLE_NAMES
from sinkscope.report.roles import with_roles
from sinkscope.report.sample import head_classes
from sinkscope.report.scored import likelihood_rows, scored_pair, without_sinks
from sinkscope.sinks import sweep, token_shares
from sinkscope.sinks.classes import NAMES as CLASSES
from sinkscope.study.analysis.results import SCHEMA
from sinkscope.study.store import LARGEST
from sinkscope.tracing import Trace

FAMILIES = ("mmada", "llada", "dream", "llama")
EPSILONS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
AGREEMENT = ("agrees", "agrees in part", "disagrees", "undecided")
Rows = list[dict[str, Any]]


def empty() -> dict[str, Any]:
    """An overview of nothing."""
    lists = ("claims", "verdicts", "cells", "tokens", "curves", "classes", "mechanism", "likelihood", "facts")
    nothing: dict[str, Any] = {"paper": {}, "paperTokens": {}, "pair": scored_pair([])}
    return {"lede": "", **{name: [] for name in (*lists, "method", "caveats")}, **nothing}


def overview(run: Path, traces: Sequence[Trace]) -> dict[str, Any]:
    """All of the overview; parts for which the run has nothing are empty."""
    with damaged(f"results.json or run.json of {run}", ReportError):
        return _overview(run, traces)


def _overview(run: Path, traces: Sequence[Trace]) -> dict[str, Any]:
    results, about = read(run / "results.json"), read(run / "run.json")
    known = {**results.get("run", {}), **about}
    cells = [_faceted(cell) for cell in [*results.get("pooled", []), *results.get("cells", [])] if "condition" in cell]
    cells = with_roles(cells)
    plain = _by_model(traces)
    tokens = [_faceted(row) for row in results.get("tokens", []) if row.get("condition", "none") == "none"]
    classes = class_rows(results)
    claims = [dict(claim) for claim in results.get("claims", []) if isinstance(claim, dict) and claim.get("claim")]
    tokens = tokens or [row for model, some in plain.items() for row in _tokens(model, some)]
    families = {row["model"]: str(row.get("family") or family_of(row["model"])) for row in [*tokens, *cells]}
    scored = likelihood_rows(results.get("likelihood", []))
    return {
        "lede": lede(claims, cells, known) + without_sinks(scored),
        "claims": claims,
        "verdicts": verdicts(results.get("verdicts", [])),
        "cells": cells,
        "roles": ROLE_NAMES,
        "tokens": tokens,
        "curves": _shown_curves(results.get("curves", []))
        or [row for model, some in plain.items() for row in _curves(model, some)],
        "classes": classes or [_classes(model, some) for model, some in plain.items()],
        "mechanism": [_faceted(row) for row in results.get("mechanism", [])],
        "likelihood": [row for row in results.get("likelihood", []) if "condition" in row],
        "pair": scored_pair(scored),
        "method": list(method.METHOD) if cells else [],
        "caveats": method.caveats(known, cells) if cells else [],
        "facts": method.facts(known),
        "paper": {model: values for model, family in families.items() if (values := paper_values(family))},
        "paperTokens": {model: paper.TABLE_2[family] for model, family in families.items() if family in paper.TABLE_2},
    }


def lede(claims: Rows, cells: Rows, about: Mapping[str, Any]) -> str:
    """The one sentence under the title: what came out, or what was run."""
    models = list(dict.fromkeys(str(cell["model"]) for cell in cells))
    if claims:
        counts = {word: sum(claim.get("verdict") == word for claim in claims) for word in AGREEMENT}
        said = ", ".join(f"{count} {_plural(word, count)}" for word, count in counts.items() if count)
        return f"The paper makes {len(claims)} claims that {_some(models)} can speak to: {said}."
    if models:
        return f"What masking attention sinks does to {_some(models)}, with random keys masked as controls."
    return str(about.get("about") or "")


def _plural(word: str, count: int) -> str:
    return word.replace("agrees", "agree") if count != 1 else word


def _some(models: Sequence[str]) -> str:
    if len(models) > 4:
        return f"{len(models)} models"
    return " and ".join([", ".join(models[:-1]), models[-1]] if len(models) > 1 else models) or "this run"


def _faceted(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose model's name carries the decode setting and the condition, where a study has several."""
    condition = row.get("condition")
    shown = condition.removesuffix(" clean by all rows") if isinstance(condition, str) and condition != "none" else ""
    extra = [row.get("setting"), shown]
    return {**row, "model": " · ".join(str(part) for part in (row.get("model", "model"), *extra) if part)}


def class_rows(results: Mapping[str, Any]) -> Rows:
    """Shares of heads by class, a row per model, setting and condition, as the study judges them.

    An autoregressive model writes one row per step, so its heads are judged by their columns so far.
    """
    found = []
    for row in results.get("dynamics", []):
        if set(CLASSES) <= set(row):
            columns = row.get("columns") or {}
            found.append(_faceted({**row, **{name: columns.get(name, row[name]) for name in CLASSES}}))
    return found


def verdicts(rows: Sequence[dict[str, Any]]) -> Rows:
    """Verdicts in words: model, what was asked, the answer, one short line, and the numbers that it rests on."""
    return [
        {
            "model": str(row.get("model", "")),
            "name": str(row.get("name", "")).replace("_", " "),
            "value": in_words(row.get("value")),
            "line": str(row.get("line") or ""),
            "because": str(row.get("because") or ""),
        }
        for row in rows
    ]


def in_words(value: Any) -> str:
    """A verdict's value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("_", " ")


def family_of(model: str) -> str:
    return next((name for name in FAMILIES if name in model.lower()), "")


def paper_values(family: str) -> dict[str, dict[int, float]]:
    """The paper's accuracies for a family: benchmark → K → accuracy."""
    return {task: values for (name, task), values in paper.TABLE_1.items() if name == family}


def _by_model(traces: Sequence[Trace]) -> dict[str, list[Trace]]:
    found: dict[str, list[Trace]] = {}
    for trace in traces:
        if not trace.interventions:  # what a changed model does is no finding about the model
            found.setdefault(str(trace.model.get("name", "model")), []).append(trace)
    return found


def _tokens(model: str, traces: Sequence[Trace]) -> Rows:
    rows = token_shares(traces).head(12).select("token", "kind", "share", "base", "enrichment").to_dicts()
    return [{"model": model, **row} for row in rows if row["share"]]


def _shown_curves(rows: Rows) -> Rows:
    """Curves of the unchanged models. Sums say nothing of a single row, and equal × uniform elsewhere: left out."""
    kept = [_faceted(row) for row in rows if row.get("condition", "none") == "none"]
    units = {row["unit"] for row in kept}
    names = ("model", "unit", "epsilon")
    return [
        {**{name: row[name] for name in names}, "nonSinks": row["non_sinks"]}
        for row in kept
        if row["unit"] != "sum" or "uniform" not in units
    ]


def _curves(model: str, traces: Sequence[Trace]) -> Rows:
    """Share of non-sinks against epsilon over all of a model's traces together."""
    counts: dict[tuple[str, float], list[int]] = {}
    for trace in traces:
        for row in sweep(trace, EPSILONS, ("uniform", "percent")).iter_rows(named=True):
            entry = counts.setdefault((row["unit"], row["epsilon"]), [0, 0])
            entry[0] += row["sinks"]
            entry[1] += row["keys"]
    return [
        {"model": model, "unit": unit, "epsilon": epsilon, "nonSinks": 1 - sinks / max(1, keys)}
        for (unit, epsilon), (sinks, keys) in counts.items()
    ]


def _classes(model: str, traces: Sequence[Trace]) -> dict[str, Any]:
    names = [name for trace in traces for name, _ in head_classes(trace)]
    shares = {kind: names.count(kind) / max(1, len(names)) for kind in CLASSES}
    return {"model": model, **shares, "generations": len(traces)}


def read(path: Path) -> dict[str, Any]:
    """A JSON object of a run; empty if the file is not there."""
    if not path.is_file():
        return {}
    found = read_object(path, LARGEST, ReportError)
    if found.get("schema", SCHEMA) != SCHEMA:  # a run made by hand may name none
        came = short(repr(found["schema"]), 40)
        raise ReportError(
            f"{path.name} of the run must have schema {SCHEMA}, not {came}; use the sinkscope that wrote it."
        )
    return found
