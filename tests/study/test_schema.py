"""results.json against the schema that is generated from the rows; the committed runs too."""

from __future__ import annotations

import dataclasses
import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from lab.rejudge import committed_runs
from sinkscope.results.rows import Cell, Claim, Dynamics, LikelihoodChange, Results
from sinkscope.study.run import run
from sinkscope.study.schema import Study

DOCS = Path(__file__).parents[2] / "docs"
json_schema = runpy.run_path(str(DOCS / "generate.py"))["json_schema"]
COMMITTED = list(committed_runs())


# Fields that runs of earlier versions do not have.
# Fields with a default may be missing.
LATER = {
    field.name
    for kind in (Cell, Dynamics, LikelihoodChange, Claim)
    for field in dataclasses.fields(kind)
    if field.default is not dataclasses.MISSING
}


@pytest.fixture(scope="module")
def made(study: Study, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("schema")
    run(study, folder, workers=1)
    found: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return found


def test_the_committed_schema_is_the_generated_one() -> None:
    written = json.loads((DOCS / "reference" / "results.schema.json").read_text(encoding="utf-8"))
    assert written == json_schema()
    jsonschema.Draft202012Validator.check_schema(written)


def test_a_run_fits_the_schema_and_comes_back_from_its_rows(made: dict[str, Any]) -> None:
    jsonschema.validate(made, json_schema(), jsonschema.Draft202012Validator)
    assert TypeAdapter(Results).validate_python(made).to_dict() == made


def test_a_run_without_a_promised_field_does_not_fit(made: dict[str, Any]) -> None:
    check = jsonschema.Draft202012Validator(json_schema())
    for table in ("cells", "pooled", "tokens", "dynamics", "likelihood", "verdicts", "claims"):
        for field in made[table][0]:
            if field in LATER or (table, field) == ("likelihood", "causal"):
                continue
            row = {name: value for name, value in made[table][0].items() if name != field}
            assert not check.is_valid({**made, table: [row]}), f"{table} without {field}"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_committed_runs_fit_the_schema(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(found, json_schema(), jsonschema.Draft202012Validator)
    TypeAdapter(Results).validate_python(found)


def test_there_are_committed_runs() -> None:
    assert "pair" in {path.parent.name for path in COMMITTED} and len(COMMITTED) >= 20
