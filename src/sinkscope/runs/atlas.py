"""An entry of the atlas: what one run found, in one small file that can be checked without the run.

It holds counts, rates, intervals and names; no prompt and no answer. `lab.atlas` has its schema: it computes what follows
from the counts again, and refuses an entry in which anything does not hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sinkscope.errors import StudyError
from sinkscope.interventions.conditions import condition_from_dict
from sinkscope.io.reading import read_object
from sinkscope.statistics import change_interval, mcnemar, wilson
from sinkscope.study import vocabulary
from sinkscope.study.analysis.claims import claims
from sinkscope.study.results import MARGIN, TABLES, Cell, Tables, read_results

SCHEMA = 1
DIGITS = 6
LARGEST = 4 << 20  # bytes of an entry
# Fields of a claim and of a row that an entry has, in its order.
CLAIM = ("name", "model", "paper_model", "condition", "verdict", "estimate", "low", "high", "limit", "unit", "n")
ASKED = ("model", "task", "setting", "label", "condition", "n")
FOUND = (
    "low", "high", "lost", "won", "difference", "difference_low", "difference_high", "p", "mass_share", "leak",
)  # fmt: skip
Entry = dict[str, Any]


def entry_of(run: Path, name: str | None = None) -> Entry:
    """The entry of a finished run: its folder or its results.json, of a study or of table1."""
    path = run / "results.json" if run.is_dir() else run
    if not path.is_file():
        raise StudyError(f"Expected a finished run, and {run} has no results.json; run it to its end.")
    found = read_object(path, 128 << 20, StudyError)
    try:
        made = _of_table1(found) if "runs" in found.get("run", {}) else _of_study(path)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StudyError(f"{path} lacks what an entry needs ({type(error).__name__}: {error}); run it again.") from None
    controls = [one for model in made["models"] for one in controls_of(model["name"], made["rows"])]
    kept = ("kind", "name", "models", "protocol", "versions", "device", "claims")
    parts = {"schema": SCHEMA, **{part: made[part] for part in kept}, "controls": controls, "rows": made["rows"]}
    plain: Entry = {**_rounded(parts), "name": name or made["name"]}
    return {**plain, "digest": digest_of(plain)}


def to_json(entry: Entry) -> str:
    """A line per row, so that a change of the file can be read."""
    parts = []
    for name, value in entry.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            text = "[\n" + ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in value) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def figures(n: int, right: int, lost: int, won: int) -> dict[str, float]:
    """What follows from the counts of a row."""
    low, high = wilson(right, n)
    change_low, change_high = change_interval(lost, won, n)
    return {
        "rate": right / n, "low": low, "high": high, "difference": (won - lost) / n, "difference_low": change_low,
        "difference_high": change_high, "p": mcnemar(lost, won),
    }  # fmt: skip


def controls_of(model: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """no-op: answers that changed; took effect: rows in which hidden keys received attention; random keys: rows without."""
    mine = [row for row in rows if row["model"] == model]
    there = {(row["task"], row["setting"], row["label"]) for row in mine}
    masked = [row for row in mine if vocabulary.is_plain_masking(row["condition"])]
    found = {  # of every row that it is about: whether it failed
        "no-op": [bool(row["lost"] or row["won"]) for row in mine if row["label"] == "noop"],
        "took effect": [row["leak"] != 0 for row in mine if row["hides"]],
        "random keys": [(row["task"], row["setting"], row["control"]) not in there for row in masked],
    }
    for name, failed in found.items():
        if failed:
            yield {"name": name, "model": model, "rows": len(failed), "failed": sum(failed), "held": not any(failed)}


def digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


# ---- from the results of a run


def _of_study(path: Path) -> dict[str, Any]:
    results = read_results(path)
    assert results is not None
    run, cells = results.run, [_recounted(cell) for cell in results.cells]
    about = read_object(path.with_name("run.json"), LARGEST, StudyError) if path.with_name("run.json").is_file() else {}
    margin = run.limit
    return {
        "kind": "study", "name": run.study, "versions": dict(run.versions), "device": about.get("machine", {}),
        "models": [_model(one["identity"], one["name"], one["causal"], one["settings"]) for one in run.models],
        "protocol": {"study": run.study, "seed": run.seed, "margin": margin, "backend": run.backend},
        **_judged(replace(results, cells=cells), margin),
    }  # fmt: skip


def _of_table1(found: Mapping[str, Any]) -> dict[str, Any]:
    run, device = found["run"], found["run"]["machine"]
    models: dict[str, dict[str, Any]] = {}
    for one in run["runs"]:
        causal = all(settings["family"] == "autoregressive" for settings in one["settings"].values())
        models.setdefault(one["model"]["name"], _model(one["model"], one["model"]["name"], causal, one["settings"]))
    whole = [cell for cell in found["cells"] if cell.get("correct") is not None and "lost" in cell]
    cells = [_cell(cell, models[cell["model"]]) for cell in whole]
    # Claims are judged at the first point of a sweep, which is looked up in what is pooled: here there is one point.
    given: dict[str, Any] = {name: cells if name in ("cells", "pooled") else [] for name in TABLES}
    return {
        "kind": "table1", "name": "table1", "models": list(models.values()),
        "protocol": {
            "tasks": {cell["task"]: cell.get("protocol") for cell in whole}, "margin": MARGIN,
            "batch_size": device["batch_size"], "sequential": run.get("sequential"),
        },
        "versions": {name: device[name] for name in ("sinkscope", "lm_eval", "torch", "transformers")},
        "device": {name: device[name] for name in ("device", "gpu", "cuda", "dtype")},
        **_judged(Tables(**given), MARGIN),
    }  # fmt: skip


def _judged(tables: Tables, margin: float) -> dict[str, Any]:
    found = claims(tables, margin / 100)
    return {
        "claims": [{name: getattr(claim, name) for name in CLAIM} for claim in found],
        "rows": [_row(cell, tables.cells) for cell in tables.cells],
    }


def _cell(cell: Mapping[str, Any], model: Mapping[str, Any]) -> Cell:
    """A cell of table1 as a study has them; what follows from the counts is filled in by `_recounted`."""
    taken = cell["effect"] or {}
    return _recounted(
        Cell(
            model=model["name"], family=model["family"], causal=model["causal"], task=cell["task"], setting="",
            condition=cell["condition"], label=cell["label"], n=cell["n"], correct=cell["correct"], accuracy=0.0, low=0.0,
            high=0.0, difference=0.0, difference_low=0.0, difference_high=0.0, p=1.0, lost=cell["lost"], won=cell["won"],
            p_holm=1.0, key_share=taken.get("key_share"), mass_share=taken.get("mass_share"), leak=taken.get("leak", 0.0),
            confidence=0.0, controls={}, paper=cell["paper"],
        )
    )  # fmt: skip


def _recounted(cell: Cell) -> Cell:
    """The same counts with the intervals of this version: runs of earlier ones had others."""
    found: dict[str, Any] = figures(cell.n, cell.correct, cell.lost, cell.won)
    return replace(cell, accuracy=found.pop("rate"), **found)


def _row(cell: Cell, cells: Sequence[Cell]) -> dict[str, Any]:
    """Rates and differences are shares; hides: masked keys must receive nothing; control: the label of its random control."""
    condition = condition_from_dict(cell.condition)
    same = [one for one in cells if (one.model, one.task, one.setting) == (cell.model, cell.task, cell.setting)]
    there = {json.dumps({"match": "count", **one.condition}, sort_keys=True): one.label for one in same}
    named = [one.to_dict() for several in vocabulary.controls(condition).values() for one in several]
    keys = [json.dumps(one, sort_keys=True) for one in named]
    return {
        **{name: getattr(cell, name) for name in ASKED}, "right": cell.correct, "rate": cell.accuracy,
        **{name: getattr(cell, name) for name in FOUND}, "hides": condition.must_take_effect,
        "control": next((there[key] for key in keys if key in there), None),
    }  # fmt: skip


def _model(identity: Mapping[str, Any], name: str, causal: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    used = {key: {part: value for part, value in one.items() if value is not None} for key, one in settings.items()}
    # A folder's place on the contributor's disk is nobody's business.
    shown = Path(name).name if name.startswith(("/", "~", ".")) else name
    sizes = {part: identity[part] for part in ("parameters", "layers", "heads", "dtype", "fingerprint")}
    known = {"name": shown, "family": identity["family"], "causal": causal, **sizes}
    return {**known, "revision": identity.get("revision"), "settings": used}
