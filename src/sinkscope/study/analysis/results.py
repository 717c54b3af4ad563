"""`Results`: everything that results.json holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sinkscope.study.analysis.rows import (
    Cell,
    Claim,
    Curve,
    FirstKey,
    Kind,
    Likelihood,
    PooledCell,
    Row,
    Setting,
    Token,
    Verdict,
)  # fmt: skip
from sinkscope.study.analysis.rows_traced import Dynamics, Mechanism

SCHEMA = 1


@dataclass(frozen=True)
class RunFacts(Row):
    """What the results were made from."""

    study: str
    seed: int
    models: list[Mapping[str, Any]]
    versions: Mapping[str, str]
    backend: str
    about: str
    units: int
    conditions: int
    margin: float | None = None  # in points


@dataclass(frozen=True)
class Results(Row):
    """The whole of results.json, in its order."""

    cells: list[Cell]
    pooled: list[PooledCell]
    settings: list[Setting]
    tokens: list[Token]
    kinds: list[Kind]
    dynamics: list[Dynamics]
    curves: list[Curve]
    mechanism: list[Mechanism]
    likelihood: list[Likelihood]
    first_key: list[FirstKey]
    verdicts: list[Verdict]
    run: RunFacts
    claims: list[Claim] | None = None
    schema: int = field(default=SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        made = super().to_dict()
        return {"schema": self.schema, "claims": made.pop("claims", []), **made}


def json_schema() -> dict[str, Any]:
    """The JSON schema of results.json; fields that are not named are allowed, since later versions may add some."""
    from pydantic import TypeAdapter

    made = TypeAdapter(Results).json_schema()
    made["required"] = ["schema", *(name for name in made["required"] if name != "schema")]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "results.json"}
