"""The explorer in a real browser: what a reader does, and what must then be on screen."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import Opener, until
from playwright.sync_api import Page

from sinkscope.sinks.rules import rule_of_form
from sinkscope.tracing import Trace

SHOW = """async (views) => {
  const app = window.sinkscope, found = [];
  for (const view of views) {
    Object.assign(app.view, view);
    await app.load();
    found.push(Array.from({length: app.sample.steps}, (_, step) => app.sinksAt(step)));
  }
  return found;
}"""


def marked(page: Page, views: list[dict[str, Any]]) -> list[set[tuple[int, int]]]:
    """(step, position) of every sink that the page marks, a set a view."""
    return [{(step, key) for step, keys in enumerate(one) for key in keys} for one in page.evaluate(SHOW, views)]


EPSILONS = {"sum": (0, 0.7, 3), "percent": (0.1, 3, 7.3), "uniform": (0, 1.9, 3), "share": (0.02, 0.1, 0.3)}


def compare(page: Page, trace: Trace, views: list[dict[str, Any]]) -> int:
    """Hold the page's marks against the table of sinks, view by view; how many sinks that were."""
    total = 0
    for view, shown in zip(views, marked(page, views), strict=True):
        expected = found(trace, *[view[name] for name in ("layer", "head", "epsilon", "unit", "group")])
        assert shown == expected, view
        total += len(expected)
    return total


def found(trace: Trace, layer: int, head: int, epsilon: float, unit: str, group: str) -> set[tuple[int, int]]:
    table = trace.sinks(rule_of_form(unit, epsilon, group))
    here = table.filter((table["layer"] == layer) & (table["head"] == head))
    return set(zip(here["step"].to_list(), here["position"].to_list(), strict=True))


def order(traces: list[Trace], page: Page) -> list[Trace]:
    """The traces in the order of the page's samples."""
    names = page.evaluate("window.sinkscope.samples.map((sample) => sample.name)")
    return [traces[int(name.split("-")[0])] for name in names]


def test_marks_are_those_of_the_python_rules(look: Opener, report: Path, traces: list[Trace]) -> None:
    page = look(report, "tab=explorer")
    compared = 0
    for sample, trace in enumerate(order(traces, page)):
        views = []
        for unit, epsilons in EPSILONS.items():
            for group in ("all", "masked", "committed", "prompt"):
                layer, head = sample % trace.layers, (sample + len(group)) % trace.heads_count
                view = {"sample": sample, "layer": layer, "head": head, "unit": unit, "group": group}
                views += [{**view, "epsilon": epsilon} for epsilon in epsilons]
        compared += compare(page, trace, views)
    assert compared > 1000


def test_every_head_agrees_at_the_papers_epsilon(look: Opener, report: Path, traces: list[Trace]) -> None:
    page = look(report, "tab=explorer")
    for sample, trace in enumerate(order(traces, page)):
        unit = "uniform" if trace.causal else "sum"
        common = {"sample": sample, "unit": unit, "group": "all", "epsilon": 3}
        heads = [(layer, head) for layer in range(trace.layers) for head in range(trace.heads_count)]
        assert compare(page, trace, [{**common, "layer": layer, "head": head} for layer, head in heads]) > 0


def test_the_slider_marks_chips_at_once(look: Opener, report: Path, traces: list[Trace]) -> None:
    page = look(report, "tab=explorer&sample=0&step=5&layer=1&head=2")
    trace = order(traces, page)[0]
    for epsilon in ("0.5", "3", "8.5"):
        page.locator("#epsilon").fill(epsilon)
        until(page, f"location.hash.includes('epsilon={epsilon}') || {epsilon} === 3")
        page.wait_for_timeout(50)
        chips = page.locator(".chip.sink").evaluate_all("chips => chips.map(chip => Number(chip.dataset.key))")
        expected = {key for step, key in found(trace, 1, 2, float(epsilon), "sum", "all") if step == 5}
        assert set(chips) == expected
        assert page.locator("#count").inner_text().startswith(f"{len(expected)} sink")


def test_stepping_changes_canvas_and_maps(look: Opener, report: Path) -> None:
    page = look(report, "tab=explorer&sample=1&layer=0&head=0")
    before = snapshot(page)
    masks = page.locator(".chip.masked").count()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    until(page, "window.sinkscope.view.step === 2 && !window.sinkscope.queued")
    page.wait_for_timeout(100)
    after = snapshot(page)
    assert page.locator(".chip.masked").count() < masks
    for panel, picture in before.items():
        assert after[panel] != picture, f"{panel} did not change"


def snapshot(page: Page) -> dict[str, str]:
    """The pixels of everything that depends on the step, and where the marker stands on the map."""
    shown = {
        name: page.evaluate("query => document.querySelector(query).toDataURL()", query)
        for name, query in {"profile": "#profile canvas", "maps": "#attention canvas"}.items()
        if page.locator(query).first.is_visible()
    }
    return shown | {"map": str(page.locator("#map .over").first.bounding_box())}


def test_a_click_on_the_grid_shows_that_head(look: Opener, report: Path) -> None:
    page = look(report, "tab=explorer&sample=1")
    picture = page.evaluate("document.querySelector('#map canvas').toDataURL()")
    box = page.locator("#grid canvas").bounding_box()
    assert box is not None
    size, high = (int(page.locator("#grid canvas").get_attribute(f"data-{name}") or 0) for name in ("size", "high"))
    page.mouse.click(box["x"] + 26 + 2.5 * size, box["y"] + 16 + 1.5 * high)
    until(page, "window.sinkscope.view.layer === 1 && window.sinkscope.view.head === 2")
    until(page, "document.querySelector('#strip-about').textContent.includes('Layer 1, head 2')")
    assert page.evaluate("document.querySelector('#map canvas').toDataURL()") != picture
    assert page.locator("#layer").input_value() == "1" and page.locator("#head").input_value() == "2"
    assert "this head (L1 H2)" in page.locator("#paths svg").inner_html()


def test_play_runs_to_the_end_and_stops(look: Opener, report: Path) -> None:
    page = look(report, "tab=explorer&speed=60&step=10")
    page.get_by_role("button", name="Play", exact=True).click()
    until(page, "window.sinkscope.view.step === window.sinkscope.sample.steps - 1")
    until(page, "!window.sinkscope.playing")
    page.get_by_role("button", name="Play", exact=True).wait_for()  # drawn with the next frame


def test_everything_can_be_done_with_keys_alone(look: Opener, report: Path) -> None:
    page = look(report, "")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Explorer"
    page.keyboard.press("Enter")
    until(page, "window.sinkscope.view.tab === 'explorer' && window.sinkscope.plane")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.name || document.activeElement.className"
            )
        )
    assert {
        "model",
        "sample",
        "layer",
        "group",
        "unit",
        "epsilon",
        "epsilon-number",
        "step",
        "play",
        "strip",
    } <= reached
    page.locator("#grid .holder").focus()
    page.keyboard.press("Escape")
    until(page, "window.sinkscope.view.layer === -1 && window.sinkscope.view.head === -1")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    until(page, "window.sinkscope.view.layer === 0 && window.sinkscope.view.head === 1")
    page.locator("#step").focus()
    page.keyboard.press("End")
    until(page, "window.sinkscope.view.step === window.sinkscope.sample.steps - 1")
    page.keyboard.press("Home")
    until(page, "window.sinkscope.view.step === 0")
    page.keyboard.press("Space")
    until(page, "window.sinkscope.playing")
    page.keyboard.press("Space")
    until(page, "!window.sinkscope.playing")


def test_the_fragment_restores_the_view(look: Opener, report: Path) -> None:
    page = look(report, "tab=explorer&sample=1")
    page.locator("#layer").select_option("2")
    page.locator("#head").select_option("1")
    page.get_by_role("radio", name="masked").check()
    page.locator("#epsilon-number").fill("2.2")
    page.locator("#epsilon-number").press("Enter")
    page.locator("#step").press("ArrowRight")
    until(page, "location.hash.includes('step=1') && location.hash.includes('epsilon=2.2')")
    shown = page.evaluate("JSON.stringify(window.sinkscope.view)")
    fragment = page.evaluate("location.hash")
    again = look(report, fragment.removeprefix("#"))
    assert json.loads(again.evaluate("JSON.stringify(window.sinkscope.view)")) == json.loads(shown)
    assert again.locator("#strip-about").inner_text() == page.locator("#strip-about").inner_text()


@pytest.mark.parametrize("fragment", ["sample=99&step=-5&layer=77&head=3", "step=abc&epsilon=NaN&group=x&tab=nowhere"])
def test_a_nonsense_fragment_still_opens(look: Opener, report: Path, fragment: str) -> None:
    page = look(report, fragment)
    assert page.locator("main:visible").count() == 1


def test_downloads(look: Opener, report: Path, traces: list[Trace], tmp_path: Path) -> None:
    page = look(report, "tab=explorer&sample=1&layer=0&head=0&step=3")
    trace = order(traces, page)[1]
    for panel in ("map", "profile", "grid", "paths", "attention"):
        for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
            if page.locator(f"#{panel}").is_visible():
                with page.expect_download() as waiting:
                    page.locator(f"#{panel}").get_by_role("button", name=f"as {kind}").click()
                path = tmp_path / waiting.value.suggested_filename
                waiting.value.save_as(path)
                assert path.read_bytes().startswith(start) and path.stat().st_size > 500
    with page.expect_download() as waiting:
        page.locator("#map").get_by_role("button", name="as CSV").click()
    waiting.value.save_as(tmp_path / "map.csv")
    with (tmp_path / "map.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == trace.steps * trace.positions
    sinks = {(int(row["step"]), int(row["position"])) for row in rows if row["sink"] == "1"}
    assert sinks == found(trace, 0, 0, 3, "sum", "all")


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("tab", ["overview", "explorer"])
def test_nothing_overflows(look: Opener, report: Path, width: int, tab: str) -> None:
    page = look(report, f"tab={tab}&sample=1&layer=1", width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = page.evaluate("""Array.from(document.querySelectorAll("main:not([hidden]) .panel > *"))
        .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.className || e.tagName)""")
    assert wider == []


def test_a_compact_sample_shows_the_rounded_means(look: Opener, tmp_path: Path, traces: list[Trace]) -> None:
    import numpy as np

    from sinkscope.report.overview import overview
    from sinkscope.report.page import build, quantise
    from sinkscope.report.sample import compact, largest, layer_means

    head, blob = compact(traces[0], "one")
    path = tmp_path / "compact.html"
    data = {"title": "", "overview": overview(), "samples": [head], "note": ""}
    path.write_text(build(data, [blob.text()]), encoding="utf-8")
    page = look(path, "layer=2&head=1")
    shown = np.array(page.evaluate("window.sinkscope.source.plane(2, -1, 'masked').then((p) => Array.from(p.values))"))
    codes, table = quantise(layer_means(traces[0]))  # the rounded means, as the page holds them
    expected = table[codes][0, 2]
    assert np.array_equal(shown.reshape(expected.shape).astype(np.float32), expected)
    keys = np.array(page.evaluate("window.sinkscope.source.paths('all').then((p) => Array.from(p.keys))"))
    assert np.array_equal(keys, largest(traces[0])[0].reshape(-1))
    assert "keeps only the path of head 1" in page.locator("#strip-about").inner_text()
