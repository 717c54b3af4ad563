"""`sinkscope export`: an entry of a study and of table1 holds, and no text of a problem or an answer is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.atlas import problems, read_entry
from sinkscope.cli.app import run as command
from sinkscope.study.run import run
from sinkscope.study.schema import Study
from sinkscope.tasks import problems as drawn


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for one in value.values() for text in texts_of(one))
    elif isinstance(value, list):
        yield from (text for one in value for text in texts_of(one))
    elif isinstance(value, str):
        yield value


@pytest.fixture(scope="module")
def finished(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    conditions = ["none", "noop", {"name": "mask_sinks", "k": 1}, {"name": "mask_random", "k": 1}]
    asked = {name: small[name] for name in ("name", "models", "tasks", "decode")} | {"conditions": conditions}
    return run(Study.from_dict(asked), tmp_path_factory.mktemp("run") / "r", workers=1).folder


def test_an_entry_of_a_study_holds_and_has_no_text(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "entry.json"
    assert command(["export", str(finished), "-o", str(out), "--name", "mine"]) == 0
    entry = read_entry(out)
    assert problems(entry) == [] and (entry.kind, entry.name) == ("study", "mine")
    assert {one.name: one.causal for one in entry.models} == {"small-llama": True, "small-llada": False}
    assert all(len(one.fingerprint) == 64 for one in entry.models) and entry.device["device"] == "cpu"
    assert {(one.name, one.held) for one in entry.controls} == {
        ("no-op", True),
        ("took effect", True),
        ("random keys", True),
    }
    assert len(entry.rows) == 2 * 2 * 4 and entry.versions["torch"]
    written = out.read_text()
    asked = [text for task in ("arithmetic", "recall") for one in drawn(task, n=5) for text in (one.prompt, one.answer)]
    units = [json.loads(path.read_text())["result"] for path in (finished / "units").glob("answers*.json")]
    answered = [text for text in texts_of(units) if len(text) > 12 and not text.isidentifier()]
    assert answered and not [
        text for text in [*asked, *answered] if json.dumps(text, ensure_ascii=False)[1:-1] in written
    ]
    assert str(finished.parent) not in written and "/small-llada" not in written


def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["export", str(tmp_path), "-o", str(tmp_path / "entry.json")]) == 2
    (tmp_path / "results.json").write_text('{"schema": 2, "run": {"runs": [{}]}}')
    assert command(["export", str(tmp_path), "-o", str(tmp_path / "entry.json")]) == 2
    assert "Traceback" not in capsys.readouterr().err and not (tmp_path / "entry.json").exists()
