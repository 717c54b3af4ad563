"""What the default study keeps of a generation, seen in its report: a pair, maps, a moving sink, classes that follow ε."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from made_runs import Opener, made_results, until
from test_classes import expected, shown

from made_conditions import make_condition
from sinkscope.report import write
from sinkscope.study.problem_sets import run_unit
from sinkscope.study.schema import Study
from sinkscope.study.units import ModelInfo, Unit
from sinkscope.study.units.trace import TraceKind
from sinkscope.tracing import Trace
from sinkscope.tracing.heads import head_dynamics, notable

MODEL = "tiny-llada"
AXE = "axe.run(document).then((result) => result.violations.map((one) => [one.id, one.nodes[0].html]))"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces that the study of the tiny family keeps of one problem, made by its own units."""
    folder = tmp_path_factory.mktemp("default") / "run"
    plan = Study.load("tiny").to_dict()
    trace = {**plan["trace"], "problems": 1}
    study = Study.from_dict({**plan, "models": [MODEL], "likelihood": {}, "expected": {}, "trace": trace})
    facts = ModelInfo(**run_unit(study, Unit("facts", MODEL, make_condition("none"), shown=MODEL), folder))
    for unit in TraceKind().plan(study, facts):
        if unit.task == "programs":
            run_unit(study, unit, folder)
    (folder / "results.json").write_text(json.dumps(made_results()))  # without results a page opens on the explorer
    return folder


@pytest.fixture(scope="module")
def pair(kept: Path) -> list[Trace]:
    """The problem unmasked and masked."""
    found = [Trace.load(path) for path in sorted((kept / "traces").iterdir())]
    return sorted(found, key=lambda trace: len(trace.interventions))


def test_a_pair_and_the_maps_of_notable_heads_are_kept(pair: list[Trace]) -> None:
    before, after = pair
    assert before.prompt == after.prompt and not before.interventions
    assert [(one["name"], one["k"]) for one in after.interventions] == [("MaskSinks", 1)]
    for trace in pair:
        heads = head_dynamics(trace)
        assert trace.map_heads == notable(heads, 2) and trace.maps is not None
        assert trace.maps.shape == (2, trace.steps, trace.positions, trace.positions)
        found = {row["class"] for row in heads.rows(named=True) if (row["layer"], row["head"]) in trace.map_heads}
        assert found == {"moving", "static"}


def test_the_report_opens_on_a_head_and_the_pair_steps_together(look: Opener, kept: Path, pair: list[Trace]) -> None:
    first = look(write(kept), "")
    until(first, "Number(document.querySelector('#live').dataset.step) > 2")
    assert "sink at position" in first.locator("#live .now").inner_text()
    assert "tiny-llada" in first.locator("#live").inner_text()
    page = look(kept / "report.html", "tab=explorer")
    layer, head = page.evaluate("[sinkscope.view.layer, sinkscope.view.head]")
    table = pair[0].heads()
    assert table.filter((table["layer"] == layer) & (table["head"] == head))["class"].to_list() == ["static"]
    layer, head = pair[0].map_heads[0]  # whose maps are on the page too
    page = look(kept / "report.html", f"tab=explorer&layer={layer}&head={head}")
    assert page.locator("#map canvas").is_visible()
    assert page.locator("#attention canvas").count() == 2 and page.locator("#attention").is_visible()
    assert page.locator("#compare figcaption").all_inner_texts() == ["nothing masked", "sinks masked, K = 1"]
    page.locator("#step").focus()
    for step in (1, 2):
        page.keyboard.press("ArrowRight")
        until(
            page, f"Array.from(document.querySelectorAll('#compare .side')).every((e) => e.dataset.step === '{step}')"
        )
        titles = page.locator("#attention figcaption")
        until(page, f"document.querySelector('#attention .pair').textContent.includes('Step {step + 1}')")
        assert titles.all_inner_texts() == [f"Step {step}", f"Step {step + 1}"]
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    assert page.evaluate(AXE) == []


def test_classes_of_both_follow_epsilon(look: Opener, kept: Path, pair: list[Trace]) -> None:
    page = look(write(kept), "")
    masked = page.evaluate("sinkscope.samples.map((sample) => sample.interventions.length)")
    assert masked == [0, 1]
    for place, trace in enumerate(pair):
        answers = []
        for epsilon in (1, 3, 9):
            view = {"epsilon": epsilon, "unit": "uniform", "group": "all"}
            answers.append(shown(page, place, view))
            assert answers[-1] == expected(trace, view)
        assert answers[0] != answers[1] != answers[2]
