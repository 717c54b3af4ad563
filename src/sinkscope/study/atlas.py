"""An entry of the atlas: what one run found, in one small file that can be checked without the run.

It holds counts, rates, intervals and names; no prompt and no answer. `python -m lab.atlas` computes what follows from the
counts again, and refuses an entry in which anything does not hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sinkscope.errors import StudyError
from sinkscope.interventions.conditions import condition_from_dict
from sinkscope.io.reading import read_object
from sinkscope.statistics import change_interval, mcnemar, wilson
from sinkscope.study import vocabulary
from sinkscope.study.analysis import MARGIN
from sinkscope.study.analysis.claims import claims
from sinkscope.study.results import TABLES, Cell, ClaimVerdict, Tables, read_results

SCHEMA = 1
DIGITS = 6
LARGEST = 4 << 20  # bytes of an entry


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class EntryModel(_Part):
    """The checkpoint: `fingerprint` is the hash of its weights, `revision` the commit that was asked for."""

    name: str
    family: str
    causal: bool
    parameters: int
    layers: int
    heads: int
    dtype: str
    fingerprint: str
    revision: str | None
    settings: dict[str, dict[str, Any]]  # of decoding, by point of the sweep or by benchmark


class EntryRow(_Part):
    """One model, task and condition. Rates and differences are shares; `control` is the label of its random control."""

    model: str
    task: str
    setting: str
    label: str
    condition: dict[str, Any]
    n: int
    right: int
    rate: float
    low: float
    high: float
    lost: int
    won: int
    difference: float
    difference_low: float
    difference_high: float
    p: float
    mass_share: float | None
    leak: float
    hides: bool  # the condition hides keys, which must then receive nothing
    control: str | None


class EntryClaim(_Part):
    name: str
    model: str
    paper_model: str | None
    condition: str
    verdict: ClaimVerdict
    estimate: float
    low: float
    high: float
    limit: float
    unit: str
    n: int


class EntryControl(_Part):
    """no-op: answers that changed; took effect: rows in which hidden keys received attention; random keys: rows without."""

    name: Literal["no-op", "took effect", "random keys"]
    model: str
    rows: int
    failed: int
    held: bool


class Entry(_Part):
    schema_number: Literal[1] = Field(alias="schema")
    kind: Literal["study", "table1"]
    name: str
    models: list[EntryModel]
    protocol: dict[str, Any]
    versions: dict[str, str]
    device: dict[str, Any]
    claims: list[EntryClaim]
    controls: list[EntryControl]
    rows: list[EntryRow]
    digest: str

    def to_json(self) -> str:
        """A line per row, so that a change of the file can be read."""
        plain = self.model_dump(by_alias=True)
        parts = []
        for name, value in plain.items():
            if isinstance(value, list):
                text = "[\n" + ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in value) + "\n ]"
            else:
                text = json.dumps(value, ensure_ascii=False)
            parts.append(f" {json.dumps(name)}: {text}")
        return "{\n" + ",\n".join(parts) + "\n}\n"


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
    rows, models = made["rows"], [one["name"] for one in made["models"]]
    judged = {"controls": [one.model_dump() for model in models for one in controls_of(model, rows)]}
    rest = {name: value for name, value in made.items() if name != "rows"}
    parts = _rounded({**rest, **judged, "rows": [row.model_dump() for row in rows]})
    plain = {"schema": SCHEMA, **parts, "name": name or made["name"]}
    return Entry.model_validate({**plain, "digest": digest_of(plain)})


def figures(n: int, right: int, lost: int, won: int) -> dict[str, float]:
    """What follows from the counts of a row."""
    low, high = wilson(right, n)
    change_low, change_high = change_interval(lost, won, n)
    return {
        "rate": right / n, "low": low, "high": high, "difference": (won - lost) / n, "difference_low": change_low,
        "difference_high": change_high, "p": mcnemar(lost, won),
    }  # fmt: skip


def controls_of(model: str, rows: list[EntryRow]) -> Iterator[EntryControl]:
    mine = [row for row in rows if row.model == model]
    there = {(row.task, row.setting, row.label) for row in mine}
    masked = [row for row in mine if vocabulary.is_plain_masking(row.condition)]
    found: dict[Any, list[bool]] = {  # of every row that it is about: whether it failed
        "no-op": [bool(row.lost or row.won) for row in mine if row.label == "noop"],
        "took effect": [row.leak != 0 for row in mine if row.hides],
        "random keys": [(row.task, row.setting, row.control) not in there for row in masked],
    }
    for name, failed in found.items():
        if failed:
            yield EntryControl(name=name, model=model, rows=len(failed), failed=sum(failed), held=not any(failed))


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
    margin = MARGIN if run.margin is None else run.margin
    return {
        "kind": "study", "name": run.study, "versions": dict(run.versions), "device": about.get("machine", {}),
        "models": [_model(one["identity"], one["name"], one["causal"], one["settings"]) for one in run.models],
        "protocol": {"study": run.study, "seed": run.seed, "margin": margin, "backend": run.backend},
        "rows": [_row(cell, cells) for cell in cells], "claims": _claims(replace(results, cells=cells), margin),
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
    tables = Tables(**given)
    return {
        "kind": "table1", "name": "table1", "models": list(models.values()), "rows": [_row(cell, cells) for cell in cells],
        "protocol": {
            "tasks": {cell["task"]: cell.get("protocol") for cell in whole}, "margin": MARGIN,
            "batch_size": device["batch_size"], "sequential": run.get("sequential"),
        },
        "versions": {name: device[name] for name in ("sinkscope", "lm_eval", "torch", "transformers")},
        "device": {name: device[name] for name in ("device", "gpu", "cuda", "dtype")},
        "claims": _claims(tables, MARGIN),
    }  # fmt: skip


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


def _row(cell: Cell, cells: list[Cell]) -> EntryRow:
    condition = condition_from_dict(cell.condition)
    same = [one for one in cells if (one.model, one.task, one.setting) == (cell.model, cell.task, cell.setting)]
    there = {json.dumps({"match": "count", **one.condition}, sort_keys=True): one.label for one in same}
    named = [one.to_dict() for several in vocabulary.controls(condition).values() for one in several]
    keys = [json.dumps(one, sort_keys=True) for one in named]
    return EntryRow(
        model=cell.model, task=cell.task, setting=cell.setting, label=cell.label, condition=dict(cell.condition),
        n=cell.n, right=cell.correct, rate=cell.accuracy, low=cell.low, high=cell.high, lost=cell.lost, won=cell.won,
        difference=cell.difference, difference_low=cell.difference_low, difference_high=cell.difference_high, p=cell.p,
        mass_share=cell.mass_share, leak=cell.leak, hides=condition.must_take_effect,
        control=next((there[key] for key in keys if key in there), None),
    )  # fmt: skip


def _model(identity: Mapping[str, Any], name: str, causal: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {part: identity[part] for part in ("family", "parameters", "layers", "heads", "dtype", "fingerprint")}
    used = {key: {part: value for part, value in one.items() if value is not None} for key, one in settings.items()}
    # A folder's place on the contributor's disk is nobody's business.
    shown = Path(name).name if name.startswith(("/", "~", ".")) else name
    return {"name": shown, "causal": causal, "revision": identity.get("revision"), "settings": used, **sizes}


def _claims(tables: Tables, margin: float) -> list[dict[str, Any]]:
    kept = EntryClaim.model_fields
    return [{name: getattr(claim, name) for name in kept} for claim in claims(tables, margin / 100)]
