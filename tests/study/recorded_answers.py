"""What a run answered, cell by cell, in a form that names nothing inside the package: counts, dose and a digest of the tokens.

`python tests/study/recorded_answers.py RUN…` writes them to recorded_answers.json; test_recorded_answers.py compares.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import polars as pl

FILE = Path(__file__).with_name("recorded_answers.json")


def record_answers(run: Path) -> list[dict[str, Any]]:
    """One entry per cell of a finished run, from its results.json and results.parquet."""
    cells = json.loads((run / "results.json").read_text(encoding="utf-8"))["cells"]
    answers = pl.read_parquet(run / "results.parquet").filter(pl.col("kind") == "answers")
    found = []
    for cell in cells:
        mine = answers.filter(
            (pl.col("model") == cell["model"]) & (pl.col("task") == cell["task"])
            & (pl.col("setting") == cell["setting"]) & (pl.col("condition") == cell["label"])
        ).sort("problem")  # fmt: skip
        plain = json.dumps(mine["tokens"].to_list()).encode()
        found.append({
            "model": cell["model"], "task": cell["task"], "setting": cell["setting"], "condition": cell["condition"],
            "n": cell["n"], "correct": cell["correct"], "mass_share": cell["mass_share"], "key_share": cell["key_share"],
            "leak": cell["leak"], "tokens": hashlib.sha256(plain).hexdigest()[:16],
        })  # fmt: skip
    return found


if __name__ == "__main__":
    recorded = {Path(name).name: record_answers(Path(name)) for name in sys.argv[1:]}
    lines = ",\n".join(
        f' "{name}": [\n  ' + ",\n  ".join(json.dumps(cell) for cell in cells) + "\n ]"
        for name, cells in recorded.items()
    )
    FILE.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
