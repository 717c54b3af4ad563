"""Sink rules on the page: whatever Python registers is offered, and its formulas mark the keys that Python marks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from made_runs import made_trace
from torch import Tensor

from sinkscope.errors import RuleError
from sinkscope.report import page
from sinkscope.report.view import heads
from sinkscope.sinks import rules
from sinkscope.sinks.rules import RULES, BrowserForm, Columns, Rule, register, rule_of_form

JS = Path(page.__file__).parent / "explorer" / "rules.js"


@pytest.fixture
def double() -> Iterator[type[Rule]]:
    """A rule from outside: more than a multiple of the mean."""

    @register
    @dataclass(frozen=True)
    class Multiple(Rule):
        name: ClassVar[str] = "multiple"
        forms: ClassVar[tuple[BrowserForm, ...]] = (
            BrowserForm("multiple", "× mean", "multiples of the mean", "A sink draws more than ε means", "keys total /",
                        "parameter total * keys /", parameter="times"),
        )  # fmt: skip
        times: float = 3.0

        @property
        def unit(self) -> str:
            return "mean"

        def score(self, columns: Columns) -> Tensor:
            return columns.received * (columns.keys / columns.received.sum(-1, keepdim=True))

        def mark(self, columns: Columns) -> Tensor:
            return columns.received > self.times * columns.received.sum(-1, keepdim=True) / columns.keys

    yield Multiple
    del RULES._things["multiple"]


def run_in_deno(folder: Path, names: str, cases: list[object], body: str) -> list[object]:
    """What a function of one case, written in JavaScript on the page's own rules, returns for each case."""
    deno = shutil.which("deno", path=str(Path(sys.executable).parent)) or shutil.which("deno")
    assert deno is not None, "deno comes with the development tools"
    (folder / "cases.json").write_text(json.dumps([page.rules(), cases]))
    (folder / "run.js").write_text(
        f'import {{ {names}, useRules }} from "{JS.as_uri()}";\n'
        'const [rules, cases] = JSON.parse(await Deno.readTextFile("cases.json"));\nuseRules(rules);\n'
        f"console.log(JSON.stringify(cases.map({body})));\n"
    )
    command = [deno, "run", "--allow-read", "--no-config", "run.js"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_rules_without_a_form_are_named_and_cannot_be_chosen() -> None:
    offered = {rule["unit"]: rule for rule in page.rules()}
    assert list(offered) == ["sum", "percent", "uniform", "zscore", "share"]
    assert offered["sum"]["limit"] and offered["zscore"]["limit"] is None and "sk.ZScore" in offered["zscore"]["about"]
    with pytest.raises(RuleError, match="zscore"):
        rule_of_form("zscore", 3.0)


def test_the_formulas_mark_what_the_rules_mark(double: type[Rule], tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    cases, expected = [], []
    for unit in ("sum", "percent", "uniform", "multiple"):
        for _ in range(40):
            keys, queries = (int(torch.randint(1, 60, (), generator=draw)) for _ in range(2))
            value = float(torch.rand((), generator=draw)) * 4
            received = torch.rand(keys, generator=draw).pow(4) * queries
            cases.append([unit, value, queries, keys, float(received.sum()), received.tolist()])
            expected.append(rule_of_form(unit, value).marks(received, queries).tolist())
    body = """([unit, value, queries, keys, total, received]) => {
        const bound = limit(Math.fround(total), value, unit, queries, keys);
        return received.map((one) => Math.fround(one) > bound);
    }"""
    assert run_in_deno(tmp_path, "limit", cases, body) == expected and any(map(any, expected))


def test_the_share_of_a_head_marks_what_the_rule_marks(tmp_path: Path) -> None:
    """Column sums per query that sees the key, where each key is seen by other queries and where all see all."""
    draw = torch.Generator().manual_seed(0)
    cases, expected = [], []
    for limited in (True, False):
        for _ in range(20):
            steps, keys, queries = (int(torch.randint(1, 20, (), generator=draw)) for _ in range(3))
            value = float(torch.rand((), generator=draw))
            seen = torch.randint(0, queries + 1, (steps, keys), generator=draw) if limited else None
            received = torch.rand(steps, keys, generator=draw) * (queries if seen is None else seen)
            sample = {"steps": steps, "positions": keys, "queries": [[queries, 0, 0]] * steps}
            cases.append([sample, received.tolist(), None if seen is None else seen.flatten().tolist(), value])
            rule, counts = rule_of_form("share", value), torch.full((steps,), queries)
            expected.append(rule.marks(received, counts, seen=seen).flatten().tolist())
    body = """([sample, received, seen, value]) => {
        const shares = perQuery(sample, Float32Array.from(received.flat()), "all", seen);
        return Array.from(shares, (one) => one > limit(0, value, "share", 1, sample.positions));
    }"""
    assert run_in_deno(tmp_path, "limit, perQuery", cases, body) == expected and any(map(any, expected))


def test_the_server_follows_a_new_rule(double: type[Rule]) -> None:
    trace = made_trace(maps=False)
    rows = json.loads(heads(trace, {"unit": "multiple", "epsilon": "2.5", "group": "all"}))
    table = trace.heads(double(times=2.5))  # type: ignore[call-arg]
    assert [row[0] for row in rows] == table["class"].to_list()
    assert rules.GROUPS[0] == "all"
