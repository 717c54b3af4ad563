"""Classes of heads in the page follow ε, unit and kind of query, and are those of `trace.heads`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import Opener, made_trace, until
from playwright.sync_api import Page
from test_explorer import order

from sinkscope import Threshold
from sinkscope.report import write_traces
from sinkscope.sinks.rules import rule_of_form
from sinkscope.tracing import Trace

ASK = """async ([index, view]) => {
  const app = window.sinkscope;
  Object.assign(app.view, {sample: index});
  await app.load();
  return (await app.source.heads(view)).map(({name, way}) => [name, way]);
}"""


def shown(page: Page, sample: int, view: dict[str, Any]) -> list[list[str | None]]:
    found: list[list[str | None]] = page.evaluate(ASK, [sample, view])
    return found


def expected(trace: Trace, view: dict[str, Any]) -> list[list[str | None]]:
    table = trace.heads(rule_of_form(view["unit"], view["epsilon"], view["group"]))
    return [list(row) for row in table.select("class", "direction").rows()]


def test_classes_follow_epsilon_unit_and_group(look: Opener, report: Path, traces: list[Trace]) -> None:
    page = look(report, "tab=explorer")
    seen: set[str | None] = set()
    for sample, trace in enumerate(order(traces, page)):
        answers = []
        for unit in ("sum", "percent", "uniform", "share"):
            for group in ("all", "masked", "committed"):
                for epsilon in (0.05, 0.1, 0.3) if unit == "share" else (0.5, 3, 15):
                    view = {"epsilon": epsilon, "unit": unit, "group": group}
                    answers.append(shown(page, sample, view))
                    assert answers[-1] == expected(trace, view), (sample, view)
        assert len({str(answer) for answer in answers}) > 3  # they do change
        seen |= {name for answer in answers for name, _ in answer}
    assert {"none", "static", "moving", "flash"} <= seen


@pytest.mark.parametrize("seed", range(4))
def test_odd_heads_get_the_same_class(look: Opener, tmp_path: Path, seed: int) -> None:
    """Heads made at random: sinks that flash, split between kinds of query, come and go; in fp32, so that nothing ties."""
    trace = wild_trace(seed)
    page = look(write_traces([trace], tmp_path / "wild.html"), "")
    names = set()
    units = {
        "sum": (0.3, 1.5, 3, 6),
        "percent": (0.3, 1.5, 3, 6),
        "uniform": (0.3, 1.5, 3, 6),
        "share": (0.05, 0.1, 0.3),
    }
    for unit, epsilons in units.items():
        for epsilon in epsilons:
            for group in ("all", "masked"):
                view = {"epsilon": epsilon, "unit": unit, "group": group}
                found = shown(page, 0, view)
                assert found == expected(trace, view), view
                names |= {name for name, _ in found}
    assert {"split", "moving", "none"} <= names


def wild_trace(seed: int) -> Trace:
    from dataclasses import replace

    trace = made_trace(maps=False, dtype=torch.float32, seed=seed, layers=4, heads=6)
    draw = torch.Generator().manual_seed(100 + seed)
    steps, layers, heads, groups, keys = trace.received.shape if trace.received is not None else ()
    logits = torch.randn(steps, layers, heads, groups, keys, generator=draw)
    for layer in range(layers):
        for head in range(heads):
            for group in range(groups):
                key = int(torch.randint(keys, (), generator=draw))
                for step in range(steps):
                    move = torch.rand((), generator=draw)
                    if move < 0.12 * head:
                        key = int(torch.randint(keys, (), generator=draw))
                    if layer == 3:
                        key = 5 * group  # each kind of query has a sink of its own
                    if move < 0.9:
                        logits[step, layer, head, group, key] += 1 + 1.5 * layer
    received = logits.softmax(-1) * trace.queries[:, None, None, :, None]
    return replace(trace, received=received)


def test_the_grid_and_its_csv_follow_the_slider(
    look: Opener, report: Path, traces: list[Trace], tmp_path: Path
) -> None:
    page = look(report, "tab=explorer&sample=0&layer=-1")
    trace = order(traces, page)[0]
    texts = []
    for epsilon in ("0.5", "3", "15"):
        page.locator("#epsilon-number").fill(epsilon)
        page.locator("#epsilon-number").press("Enter")
        until(page, f"window.sinkscope.view.epsilon === {epsilon} && !window.sinkscope.queued")
        page.wait_for_selector("html[data-settled]")
        with page.expect_download() as waiting:
            page.locator("#grid").get_by_role("button", name="as CSV").click()
        waiting.value.save_as(tmp_path / "grid.csv")
        with (tmp_path / "grid.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
        table = trace.heads(Threshold(float(epsilon), unit="uniform"))
        wanted = [f"{name} {way}" if way else name for name, way in table.select("class", "direction").rows()]
        assert [row[4] for row in rows] == wanted
        texts.append(page.evaluate("document.querySelector('#grid canvas').toDataURL()"))
    assert len(set(texts)) == 3


def test_next_head_goes_on_to_a_head_of_that_class(look: Opener, report: Path, traces: list[Trace]) -> None:
    page = look(report, "tab=explorer&sample=0&layer=0&head=0")
    for name in ("moving", "static"):
        before = page.evaluate("[sinkscope.view.sample, sinkscope.view.layer, sinkscope.view.head]")
        page.get_by_role("button", name=f"Next {name} head").click()
        until(
            page,
            f"JSON.stringify({before}) !== JSON.stringify([sinkscope.view.sample, sinkscope.view.layer, sinkscope.view.head])",
        )
        sample, layer, head = page.evaluate("[sinkscope.view.sample, sinkscope.view.layer, sinkscope.view.head]")
        table = order(traces, page)[sample].heads(Threshold(3, unit="uniform"))
        row = table.filter((table["layer"] == layer) & (table["head"] == head)).row(0, named=True)
        assert row["class"] == name
    page.locator("#epsilon-number").fill("400")
    page.locator("#epsilon-number").press("Enter")
    page.get_by_role("button", name="Next moving head").click()
    page.wait_for_selector("#grid .jumps :text('No moving head')")
