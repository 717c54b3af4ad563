"""What a run on benchmarks writes beside its results: published figures, how it ended, and how far answers shifted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sinkscope.paper import TABLE_1
from sinkscope.study.results import Cell, Results
from sinkscope.study.rounds import decisions
from sinkscope.study.schema import Study
from sinkscope.study.store import Store
from sinkscope.study.units import ModelInfo, Unit
from sinkscope.tasks.protocol import benchmark_of

METRICS = ("changed", "first_change", "reordered", "same_verdict", "kl", "flipped")
Record = Mapping[str, Any]  # a stored answer: text, tokens and, of a diffusion model, steps


def table_rows(
    study: Study, store: Store, models: Sequence[ModelInfo], units: Sequence[Unit], results: Results
) -> list[dict[str, Any]]:
    """One row per cell: its accuracy and difference, what was published, and how answers and logits shifted."""
    ends = decisions(study, units, store.find) if study.sequential else {}
    answers = group_answers(units, store.load)
    shifts = group_rows(units, store.find, "shift")
    infos = {info.name: info for info in models}
    rows = []
    for cell in results.cells:
        about = infos[cell.model].benchmarks.get(cell.task, {})
        key = (cell.model, cell.task, cell.label)
        row: dict[str, Any] = {
            "model": cell.model, "task": cell.task, "condition": cell.condition, "label": cell.label, "n": cell.n,
            "accuracy": cell.accuracy, "low": cell.low, "high": cell.high, "difference": cell.difference,
            "difference_low": cell.difference_low, "difference_high": cell.difference_high, "p": cell.p,
            "mass_share": cell.mass_share, "protocol": about.get("protocol"),
            "published": about.get("published", []) if cell.label == "none" else [],
            "paper": paper_figure(cell, about),
        }  # fmt: skip
        base = answers.get((cell.model, cell.task, "none"), {})
        if cell.label != "none" and key in answers:
            row["shift"] = measure_shift(base, answers[key])
            for name in ("kl", "flipped") if key in shifts else ():
                row["shift"][name] = mean([one[name] for one in shifts[key]])
        for (group, condition), end in ends.items():
            if (group[0], group[2]) == (infos[cell.model].asked, cell.task) and condition.label == cell.label:
                row["sequential"] = end.to_dict()
        rows.append(row)
    subtract_random(rows)
    return rows


def paper_figure(cell: Cell, about: Mapping[str, Any]) -> float | None:
    """The paper's figure, for exactly its checkpoint and the protocol that repeats it."""
    exact = about.get("protocol") == "paper" and about.get("published")
    if not exact or cell.condition["name"] not in ("none", "mask_sinks"):
        return None
    return TABLE_1.get((cell.family, benchmark_of(cell.task) or ""), {}).get(int(cell.condition["k"]))


def group_answers(units: Sequence[Unit], load: Callable[[Unit], Any]) -> dict[tuple[str, str, str], dict[int, Record]]:
    return {key: {int(row["problem"]): row for row in rows} for key, rows in group_rows(units, load, "answers").items()}


def group_rows(
    units: Sequence[Unit], load: Callable[[Unit], Any], kind: str
) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Rows of stored units by model, task and label of the condition."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for unit in units:
        if unit.kind == kind and (result := load(unit)) is not None:
            found.setdefault((unit.shown, unit.task, unit.condition.label), []).extend(result["rows"])
    return found


def measure_shift(base: Mapping[int, Record], own: Mapping[int, Record]) -> dict[str, Any]:
    """What changed in the answers, whether or not they became wrong: means over problems against the unmasked run.

    changed: share of the answer's tokens that are others, position by position, up to the end of the longer answer.
    first_change: where the first of them stands, as a share of the unmasked answer (1 where nothing changed).
    reordered: share of the pairs of positions that were committed in another order; diffusion models only.
    same_verdict: share of problems whose text changed though both answers are right, or both wrong.
    """
    pairs = [(base[number], own[number]) for number in own]
    rows = [_compare(before, after) for before, after in pairs]
    same = [a["text"] != b["text"] and a["correct"] == b["correct"] for a, b in pairs]
    found = {name: mean([row[name] for row in rows]) for name in ("changed", "first_change", "reordered")}
    return {"n": len(rows), **found, "same_verdict": mean(same)}


def _compare(before: Record, after: Record) -> dict[str, float | None]:
    a, b = list(before["tokens"]), list(after["tokens"])
    longest = max(len(a), len(b))
    other = [x != y for x, y in zip(a, b, strict=False)] + [True] * (longest - min(len(a), len(b)))
    first = other.index(True) if any(other) else longest
    return {
        "changed": sum(other) / longest if longest else 0.0,
        "first_change": min(first / len(a), 1.0) if a else float(not other),
        "reordered": _reordered(before.get("steps"), after.get("steps")),
    }


def _reordered(before: Sequence[int] | None, after: Sequence[int] | None) -> float | None:
    """Share of pairs of positions, in both answers, that changed places in the order of commits."""
    size = min(len(before or ()), len(after or ()))
    if before is None or after is None or size < 2:
        return None
    signs = [np.sign(np.subtract.outer(np.asarray(one[:size]), np.asarray(one[:size]))) for one in (before, after)]
    pairs = np.triu_indices(size, 1)
    return float((signs[0] * signs[1] < 0)[pairs].mean())


def subtract_random(rows: Sequence[dict[str, Any]]) -> None:
    """Every row that masks sinks gets its shift less that of equally many random keys: what sinks are special for."""

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return row["model"], row["task"], row["condition"]["k"], row["condition"]["rows"]

    random = {key(row): row for row in rows if row["condition"]["name"] == "mask_random"}
    for row in rows:
        control = random.get(key(row))
        if row["condition"]["name"] == "mask_sinks" and control is not None and "shift" in row:
            pairs = {name: (row["shift"].get(name), control["shift"].get(name)) for name in METRICS}
            row["shift_minus_random"] = {
                name: None if a is None or b is None else a - b for name, (a, b) in pairs.items()
            }


def mean(values: Sequence[float | bool | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


# ---- as text


def as_markdown(rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any], chunk: int) -> str:
    """Accuracies with their intervals and paired tests, the shift of the answers, and what all was run with."""
    lines = []
    for row in rows:
        low, high = 100 * row["difference_low"], 100 * row["difference_high"]
        change = "" if row["label"] == "none" else f"{100 * row['difference']:+.1f} ({low:+.1f} … {high:+.1f})"
        if "sequential" in row:
            change += f", {row['sequential']['decision']} ± {row['sequential']['margin']:g}"
        lines.append([
            row["model"], row["task"], row["protocol"] or "", row["label"], row["n"], f"{row['accuracy']:.3f}",
            f"{row['low']:.3f}–{row['high']:.3f}", change, "" if row["label"] == "none" else f"{row['p']:.3g}",
            "" if row["mass_share"] is None else f"{100 * row['mass_share']:.1f}",
            "" if row["paper"] is None else f"{row['paper']:.2f}",
            ", ".join(f"{one['score']:g} ({one['by']})" for one in row["published"]),
        ])  # fmt: skip
    titles = (
        "model | task | protocol | condition | n | accuracy | 95 % | difference | p | % removed | paper | published"
    )
    parts = [markdown_table(titles, lines)]
    if moved := _shift_table(rows):
        parts.append(f"Answers against the unmasked run; in brackets less the same of random keys.\n\n{moved}")
    machine, versions = about["machine"], about["versions"]
    dtypes = ", ".join(sorted({str(model["identity"]["dtype"]) for model in about["models"]}))
    run_with = {"batch size": chunk, "dtype": dtypes, **machine, **versions}
    parts.append(", ".join(f"{name} {value}" for name, value in run_with.items() if value is not None) + "\n")
    return "\n".join(parts)


def _shift_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        if "shift" in row:
            less = row.get("shift_minus_random", {})
            shown = [_shown(row["shift"].get(name), less.get(name)) for name in METRICS[:-1]]
            lines.append([row["model"], row["task"], row["label"], *shown])
    titles = "model | task | condition | tokens changed | first change | pairs reordered | changed, same verdict | KL"
    return markdown_table(titles, lines) if lines else ""


def _shown(value: float | None, less: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" + ("" if less is None else f" ({less:+.3f})")


def markdown_table(titles: str, rows: Sequence[Sequence[object]]) -> str:
    """titles: with | between."""
    lines = [titles, *(" | ".join(map(str, row)) for row in rows)]
    head, *body = [f"| {line} |\n" for line in lines]
    return "".join([head, "|---" * len(titles.split("|")) + "|\n", *body])


def write_table(
    study: Study,
    store: Store,
    models: Sequence[ModelInfo],
    units: Sequence[Unit],
    results: Results,
    about: Mapping[str, Any],
) -> str:
    """table1.md and table1.json of what is there; the text of the first."""
    rows = table_rows(study, store, models, units, results)
    text = as_markdown(rows, about, study.chunk)
    store.write("table1.md", text)
    store.write("table1.json", json.dumps({"schema": 2, "rows": rows}, indent=1, ensure_ascii=False))
    return text
