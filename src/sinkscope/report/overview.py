"""What the overview shows: the findings, the paper's claims, cells, token shares, classes of heads, thresholds.

Everything is taken from the run's `Results`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sinkscope import paper
from sinkscope.errors import ReportError
from sinkscope.files import read_object, report_damage
from sinkscope.results import rows as stored
from sinkscope.results import series, text
from sinkscope.results.findings import list_findings, untested_sentence
from sinkscope.statistics import CORRECTION
from sinkscope.tracing.heads import NAMES as CLASSES

SCORED = ("difference", "difference_low", "difference_high", "mass_share", "n")
Rows = list[dict[str, Any]]


def overview_of(run: Path) -> dict[str, Any]:
    """All of the overview of a run's folder; the file of a trace has none."""
    if run.is_file():
        return overview()
    about = read_object(run / "run.json", stored.LARGEST, ReportError) if (run / "run.json").is_file() else {}
    with report_damage(f"results.json or run.json of {run}", ReportError):
        return overview(stored.read_results(run, ReportError), about)


def overview(results: stored.Results | None = None, about: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All of the overview; parts for which there is nothing are empty. about: what run.json holds."""
    known = {**({} if results is None else results.run.to_dict()), **(about or {})}
    tables = stored.Tables(*([],) * 10) if results is None else results
    claims = [] if results is None else results.claims
    cells = cell_rows([*tables.pooled, *tables.cells])
    # The experiment, its controls and its variants first, then sink tests by other interventions.
    roles = dict.fromkeys([*series.ROLE_NAMES, *(cell["role"] for cell in cells if cell["role"])])
    rows: list[stored.TokenShare | stored.Cell] = [*tables.tokens, *tables.cells]
    models = {shown_model(row): row.model for row in rows}  # as it is shown → its name
    return {
        "about": str(known.get("about") or ""),
        "findings": [] if results is None else [one.to_dict() for one in list_findings(results)],
        "untested": untested_sentence(claims) if claims else "",
        "claims": [_claim(row) for row in claims],
        "claimNames": text.SHORT,
        "claimMarks": text.MARKS,
        "cells": cells,
        "roles": {role: series.ROLE_NAMES.get(role) or series.without_defaults(role) for role in roles},
        "correction": CORRECTION,
        "tokens": [{**row.to_dict(), "model": shown_model(row)} for row in tables.tokens if row.condition == "none"],
        "curves": curve_rows(tables.curves),
        "classes": class_rows(tables.dynamics),
        "mechanism": [row.to_dict() for row in tables.mechanism],
        "pair": scored_pair(tables.likelihood),
        "method": list(METHOD) if cells else [],
        "caveats": caveats(known, [cell["n"] for cell in cells]) if cells else [],
        "facts": facts(known),
        "paper": {shown: values for shown, model in models.items() if (values := paper_values(model))},
        "paperTokens": {
            shown: theirs for shown, model in models.items() if (theirs := paper.TABLE_2.get(paper.family(model)))
        },
    }


def shown_model(row: Any) -> str:
    """The model's name with the decode setting and the condition, where a study has several."""
    label = row.condition if isinstance(row.condition, str) and row.condition != "none" else ""
    return " · ".join(part for part in (row.model, row.setting, series.without_defaults(label)) if part)


def cell_rows(cells: Sequence[stored.Cell]) -> Rows:
    """Cells, each with the part that it plays on the charts."""
    by_model: dict[str, list[stored.Cell]] = {}
    for cell in cells:
        by_model.setdefault(shown_model(cell), []).append(cell)
    roles: dict[int, str | None] = {}
    for some in by_model.values():
        usual = series.ranking_rows([cell.condition for cell in some], some[0].causal)
        roles |= {id(cell): series.role_of(cell.condition, usual) for cell in some}
    return [{**cell.to_dict(), "model": shown_model(cell), "role": roles[id(cell)]} for cell in cells]


def _claim(row: stored.Claim) -> dict[str, Any]:
    """A row with its figures as the terminal prints them."""
    control = {"controlFigure": text.write_control(row)} if row.control else {}
    return {**row.to_dict(), "figure": text.write_figure(row), **control}


def class_rows(dynamics: Sequence[stored.Dynamics]) -> Rows:
    """Shares of heads by class, a row per model, setting and condition, as the study judges them."""
    return [
        {"model": shown_model(row), "condition": row.condition, "generations": row.generations,
         **{name: getattr(row.judged, name) for name in CLASSES}}
        for row in dynamics
        if row.part == "all"
    ]  # fmt: skip


def curve_rows(curves: Sequence[stored.Curve]) -> Rows:
    """Curves of the unchanged models; sums say nothing of a single row, and equal × uniform elsewhere: left out."""
    plain = [row for row in curves if row.condition == "none"]
    uniform = any(row.unit == "uniform" for row in plain)
    return [
        {"model": shown_model(row), "unit": row.unit, "epsilon": row.epsilon, "nonSinks": row.non_sinks}
        for row in plain
        if row.unit != "sum" or not uniform
    ]


def paper_values(model: str) -> dict[str, dict[int, float]]:
    """The paper's accuracies for the model that this one stands for: benchmark → K → accuracy."""
    return {task: values for (name, task), values in paper.TABLE_1.items() if name == paper.family(model)}


# ---- models that were scored on the same true answers ----


def kinds_of(rows: Sequence[stored.LikelihoodChange]) -> dict[str, str]:
    """Model → ARM or DLM."""
    return {row.model: "ARM" if row.causal else "DLM" for row in rows if row.of == "answers"}


def scored_pair(rows: Sequence[stored.LikelihoodChange]) -> dict[str, Any]:
    """What one masked key per head costs each model, in nats per token, line by line."""
    lines = series.group_by_key(rows)
    return {
        "models": [{"name": name, "kind": kind} for name, kind in kinds_of(rows).items()],
        "lines": [
            {"name": name, "values": {model: {key: getattr(row, key) for key in SCORED} for model, row in some.items()}}
            for name, some in lines.items()
        ],
    }


# ---- how a run was made and what it cannot say: the last section of the page ----

SHOWN_FACTS = ("study", "about", "seed", "versions", "backend", "machine", "units", "seconds")
METHOD = (
    "A sink receives more attention than the mean of the other keys plus ε; ε = 3 × the uniform share unless said otherwise.",
    "Masking hides the K largest sinks of every head at the next step; the controls hide as many random keys "
    "(count-matched), or random keys that drew as much attention (mass-matched).",
    "Accuracies have 95 % Wilson intervals; differences are paired on the same problems (exact McNemar, bootstrap).",
)


def caveats(about: Mapping[str, Any], counts: Sequence[int]) -> list[str]:
    """Size of the models, problems of the smallest cell, what the paper leaves open; about: what run.json holds."""
    sizes = sorted({int(known["parameters"]) for _, known in _identities(about) if "parameters" in known})
    millions = " to ".join(f"{size / 1e6:,.4g}" for size in dict.fromkeys(sizes[:1] + sizes[-1:]))
    lines = [f"These models have {millions} million parameters, the paper’s 7 to 8 billion."] if sizes else []
    return [
        *lines, f"The smallest cell has {min(counts)} problems.",
        "The paper leaves the unit of ε open; the thresholds section shows both readings.",
    ]  # fmt: skip


def _identities(about: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Name and identity of each model in run.json."""
    known = [model for model in about.get("models", []) if isinstance(model, dict)]
    return [(str(model.get("name", "model")), model.get("identity") or {}) for model in known]


def facts(about: Mapping[str, Any]) -> list[list[str]]:
    """Plain facts of run.json, one per line: the run, then each model."""
    lines = []
    for name in SHOWN_FACTS:
        value = about.get(name)
        if isinstance(value, dict):
            value = ", ".join(f"{key} {word}" for key, word in value.items() if isinstance(word, str | int | float))
        if value not in (None, "", [], {}):
            lines.append([name.replace("_", " "), str(value)[:300]])
    for model, known in _identities(about):
        words = [
            f"{name} {known[name]}" for name in ("family", "parameters", "layers", "heads", "dtype") if name in known
        ]
        lines.append([model, ", ".join([*words, str(known.get("fingerprint", ""))[:16]])])
    return lines
