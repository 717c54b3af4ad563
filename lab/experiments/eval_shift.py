"""What conditions changed in benchmark answers: `python -m lab.experiments.eval_shift UNMASKED CONDITION… --out FILE`.

Each folder is what `sinkscope eval … -o FOLDER` left: the answers of one model to one task under one condition. The first one
is unmasked. Each condition is compared with it on the same problems. Prints and writes right answers with the paired difference,
the share of tokens that changed, where the first change stands, and how many answers changed at all. Intervals are 95 %.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sinkscope.evals.shift import shift
from sinkscope.statistics import bootstrap, paired, wilson


class Answers:
    """The finished generations of one folder, in the order of its problems."""

    def __init__(self, folder: Path) -> None:
        rows = _lines(folder / "requests.jsonl")
        ((self.task, found),) = json.loads((folder / "results.json").read_text(encoding="utf-8"))["tasks"].items()
        self.name = folder.name
        self.right: list[bool] = found["scores"][found["metric"]]["right"]
        generated = {row["text"]: row for row in rows if "ids" in row}  # the same text has the same tokens
        asked = {row["doc_id"]: row["resps"][0][0] for row in _lines(folder / f"samples_{self.task}.jsonl")}
        self.records = [generated[asked[number]] for number in range(len(self.right))]
        effects = [row for row in rows if "keys" in row]
        seen = sum(row["mass_seen"] for row in effects)
        self.mass = sum(row["mass"] for row in effects) / seen if seen else 0.0
        self.leak = max((row["leak"] for row in effects), default=0.0)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def compared(before: Answers, after: Answers) -> dict[str, Any]:
    """One condition against the unmasked run, over the problems that both have."""
    size = min(len(before.right), len(after.right))
    pairs = list(zip(before.right[:size], after.right[:size], strict=True))
    records = list(zip(before.records[:size], after.records[:size], strict=True))
    single = [shift([a], [b], [both]) for (a, b), both in zip(records, pairs, strict=True)]
    changed = [float(one["changed"]) for one in single]
    first = [float(one["first_change"]) for one in single]
    other = sum(a["text"] != b["text"] for a, b in records)
    return {
        "condition": after.name, "n": size, "right": sum(after.right[:size]), "unmasked": sum(before.right[:size]),
        "accuracy": wilson(sum(after.right[:size]), size),
        "difference": asdict(paired([a for a, _ in pairs], [b for _, b in pairs])),
        "changed": (sum(changed) / size, *bootstrap(changed)), "first": (sum(first) / size, *bootstrap(first)),
        "other_texts": (other / size, *wilson(other, size)), "mass_share": after.mass, "leak": after.leak,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    given = parser.parse_args(arguments)
    before, *others = map(Answers, given.folders)
    rows = [compared(before, after) for after in others]
    low, high = wilson(sum(before.right), len(before.right))
    result = {
        "task": before.task,
        "n": len(before.right),
        "right": sum(before.right),
        "accuracy": (low, high),
        "rows": rows,
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
