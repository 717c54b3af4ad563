"""Answers, tokens and effects of the shipped studies are those that were recorded before the code was rearranged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_answers import FILE, record_answers

from sinkscope.study.run import run
from sinkscope.study.schema import Study

RECORDED: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RECORDED)
def test_answers_are_those_that_were_recorded(name: str, tmp_path: Path) -> None:
    study = Study.load(name).changed(trace={"problems": 0})
    run(study, tmp_path / "run", workers=1)
    came = {json.dumps([cell[key] for key in ("model", "task", "setting", "condition")]): cell
            for cell in record_answers(tmp_path / "run")}  # fmt: skip
    for cell in RECORDED[name]:
        key = json.dumps([cell[key] for key in ("model", "task", "setting", "condition")])
        shares = {
            name: pytest.approx(cell[name], rel=1e-3) for name in ("mass_share", "key_share") if cell[name] is not None
        }
        assert came[key] == {**cell, **shares}
