"""No two models share a colour and a line style, in print and on the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from made_runs import Opener, made_curve, made_results, made_trace
from matplotlib.axes import Axes

from sinkscope.report import figures, write
from sinkscope.tracing import Trace

MODELS = [f"made-{number}" for number in range(16)]


def traces() -> list[Trace]:
    one = made_trace(steps=4, layers=1, heads=2, prompt=4, length=4, block=4, maps=False)
    return [replace(one, model={"name": name, "family": "llada"}) for name in MODELS]


def looks(ax: Axes) -> list[tuple[object, object]]:
    return [(line.get_color(), line._dash_pattern) for line in ax.lines if len(line.get_xdata()) > 2]  # type: ignore[attr-defined, arg-type]


def test_models_are_told_apart_in_print() -> None:
    for ax in (figures.sink_paths(traces()), figures.epsilon_curve(traces())):
        found = looks(ax)
        assert len(found) == len({str(look) for look in found}) == len(MODELS)


def test_models_are_told_apart_on_the_page(look: Opener, tmp_path: Path) -> None:
    for trace in traces():
        trace.save(tmp_path / "traces" / f"{trace.model['name']}.safetensors")
    curves = [row for name in MODELS for row in made_curve(name)]
    results = made_results(cells=[], tokens=[], claims=[], likelihood=[], mechanism=[], verdicts=[], curves=curves)
    (tmp_path / "results.json").write_text(json.dumps(results), encoding="utf-8")
    drawn = "(lines) => lines.map((line) => line.getAttribute('stroke') + line.getAttribute('stroke-dasharray'))"
    page = look(write(tmp_path), "")
    found = page.locator("#curves .shared line").evaluate_all(drawn)
    assert len(found) == len({*found}) == len(MODELS)
    page = look(tmp_path / "report.html", "tab=explorer&layer=0&head=-1")
    lines = page.locator("#paths svg polyline").evaluate_all(drawn)
    assert len(lines) == len({*lines}) == len(MODELS)
