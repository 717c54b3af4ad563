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

from sinkscope.conditions import Condition
from sinkscope.errors import StudyError
from sinkscope.files import read_object
from sinkscope.results import series
from sinkscope.results.claims import judge_claims
from sinkscope.results.rows import Cell, need_results
from sinkscope.statistics import change_interval, mcnemar, wilson

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
    """The entry of a finished run: its folder or its results.json."""
    path = run / "results.json" if run.is_dir() else run
    about_path = path.with_name("run.json")
    results = need_results(path)
    about = read_object(about_path, LARGEST, StudyError) if about_path.is_file() else {}
    cells = [_recounted(cell) for cell in results.cells]
    facts = results.run
    made = {
        "kind": "study", "name": facts.study,
        "models": [_model(one["identity"], one["name"], one["causal"], one["settings"]) for one in facts.models],
        "protocol": {"study": facts.study, "seed": facts.seed, "margin": facts.margin, "backend": facts.backend},
        "versions": dict(facts.versions), "device": about.get("machine", {}),
        "claims": [
            {field: getattr(claim, field) for field in CLAIM}
            for claim in judge_claims(replace(results, cells=cells), facts.margin / 100)
        ],
    }  # fmt: skip
    rows = [_row(cell, cells) for cell in cells]
    controls = [one for model in made["models"] for one in controls_of(model["name"], rows)]
    plain: Entry = _rounded({"schema": SCHEMA, **made, "controls": controls, "rows": rows, "name": name or facts.study})
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
    masked = [row for row in mine if series.is_plain_masking(row["condition"])]
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


def _recounted(cell: Cell) -> Cell:
    """The same counts with the intervals of this version: runs of earlier ones had others."""
    found: dict[str, Any] = figures(cell.n, cell.correct, cell.lost, cell.won)
    return replace(cell, accuracy=found.pop("rate"), **found)


def _row(cell: Cell, cells: Sequence[Cell]) -> dict[str, Any]:
    """Rates and differences are shares; hides: masked keys must receive nothing; control: the label of its random control."""
    condition = Condition.from_dict(cell.condition)
    same = [one for one in cells if (one.model, one.task, one.setting) == (cell.model, cell.task, cell.setting)]
    there = {json.dumps({"match": "count", **one.condition}, sort_keys=True): one.label for one in same}
    named = [one.to_dict() for several in condition.controls().values() for one in several]
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
