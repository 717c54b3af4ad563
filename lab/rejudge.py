"""Judge the claims of committed runs again from their rows: `python -m lab.rejudge [FOLDER …]`, after a rule has changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sinkscope.files import write_file
from sinkscope.results.claims import judge_claims, verdicts_of
from sinkscope.results.rows import SCHEMA, Results
from sinkscope.study.store import as_json

ROOT = Path(__file__).parents[1]
RESULTS = (ROOT / "results", ROOT / "lab" / "results")
MARGIN = 5.0  # points, of runs that did not record theirs


def committed_runs(*folders: Path) -> Iterator[Path]:
    """Every results.json of a run below these folders."""
    for folder in folders or RESULTS:
        yield from sorted(folder.rglob("results.json"))


def rejudge(values: dict[str, Any]) -> Results:
    """Results as this version writes them, from the rows that any version wrote."""
    run = {"margin": MARGIN, **values["run"]}
    plain = {**values, "schema": SCHEMA, "run": run, "claims": [], "verdicts": []}
    results = TypeAdapter(Results).validate_python(plain)
    claims = judge_claims(results, results.run.margin / 100)
    return replace(results, claims=claims, verdicts=verdicts_of(claims))


def main() -> None:
    for path in committed_runs(*map(Path, sys.argv[1:])):
        results = rejudge(json.loads(path.read_text(encoding="utf-8")))
        write_file(path, as_json(results.to_dict()))
        print(f"{path.parent.name}: {len(results.claims)} claims")


if __name__ == "__main__":
    main()
