"""The comparison of two benchmark runs, on answers written by hand."""

import json
from pathlib import Path

import pytest

from lab.experiments import eval_shift


def folder(path: Path, answers: list[tuple[str, list[int], bool]], mass: float = 0.0) -> Path:
    path.mkdir()
    rows = [{"key": str(number), "text": text, "ids": ids} for number, (text, ids, _) in enumerate(answers)]
    effect = {"key": "effect", "keys": 1, "mass": mass, "mass_seen": 1.0, "leak": 0.0}
    lines = [json.dumps(row) for row in [*reversed(rows), effect]]  # finished in another order than asked
    (path / "requests.jsonl").write_text("\n".join(lines) + "\n")
    samples = [{"doc_id": number, "resps": [[text]]} for number, (text, _, _) in enumerate(answers)]
    (path / "samples_t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
    scores = {"em": {"right": [right for _, _, right in answers]}}
    (path / "results.json").write_text(json.dumps({"tasks": {"t": {"metric": "em", "scores": scores}}}))
    return path


def test_a_condition_is_compared_problem_by_problem(tmp_path: Path) -> None:
    before = folder(tmp_path / "none", [("a b", [1, 2], True), ("c d", [3, 4], True), ("e", [5], False)])
    after = folder(tmp_path / "masked", [("a b", [1, 2], True), ("c x", [3, 9], False)], mass=0.25)
    eval_shift.main([str(before), str(after), "--out", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())
    (row,) = found["rows"]
    assert (found["n"], found["right"], row["n"], row["right"], row["unmasked"]) == (3, 2, 2, 1, 2)
    assert (row["difference"]["lost"], row["difference"]["won"]) == (1, 0)
    assert row["changed"][0] == pytest.approx(0.25)  # none of two tokens, one of two
    assert row["first"][0] == pytest.approx(0.75)
    assert (row["other_texts"][0], row["mass_share"]) == (0.5, 0.25)
