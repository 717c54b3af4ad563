"""Before and after side by side, lines from queries to keys, blocks, edits: what the explorer shows of a head's life."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import WORDS, Opener, made_trace, until

from sinkscope.report import write_traces
from sinkscope.report.writing import choose
from sinkscope.tracing import Trace


@pytest.fixture
def pair() -> list[Trace]:
    """The same problem unmasked and masked: the masked one's sinks are drawn elsewhere."""
    plain = made_trace(maps=False)
    masked = made_trace(maps=False, seed=5, interventions=[{"name": "MaskSinks", "k": 1, "rank": "clean"}])
    return [plain, made_trace(maps=False, prompt=14, seed=2), masked]


def test_a_pair_is_shown_side_by_side_and_steps_together(look: Opener, tmp_path: Path, pair: list[Trace]) -> None:
    page = look(write_traces(pair, tmp_path / "pair.html"), "layer=1&head=0&sample=0")
    sides = page.locator("#compare .side")
    assert sides.count() == 2 and page.locator("#compare").is_visible()
    assert page.locator("#compare figcaption").all_inner_texts() == ["nothing masked", "sinks masked, K = 1"]
    before = [sides.nth(i).locator("canvas").evaluate("c => c.toDataURL()") for i in range(2)]
    assert before[0] != before[1]
    page.locator("#step").focus()
    for step in (1, 2, 3):
        page.keyboard.press("ArrowRight")
        until(
            page, f"Array.from(document.querySelectorAll('#compare .side')).every((e) => e.dataset.step === '{step}')"
        )
    masks = [sides.nth(i).locator(".chip.masked").count() for i in range(2)]
    assert masks == [page.locator("#strip .chip.masked").count()] * 2
    other = page.evaluate("sinkscope.samples.findIndex((s) => s.prompt !== sinkscope.samples[0].prompt)")
    page.locator("#sample").select_option(str(other))
    until(page, "document.querySelector('#compare').hidden")


def test_the_marks_of_both_sides_are_those_of_the_rules(look: Opener, tmp_path: Path, pair: list[Trace]) -> None:
    page = look(write_traces(pair, tmp_path / "pair.html"), "layer=2&head=0&step=6&sample=0")
    for side, trace in ((0, pair[0]), (1, pair[2])):
        table = trace.sinks()
        here = table.filter((table["layer"] == 2) & (table["head"] == 0) & (table["step"] == 6))
        chips = page.locator("#compare .side").nth(side).locator(".chip.sink")
        keys = chips.evaluate_all("chips => chips.map(chip => Number(chip.dataset.key))")
        assert keys == here["position"].to_list()


def test_twins_come_along_when_samples_are_chosen() -> None:
    named = []
    for number in range(8):
        trace = made_trace(maps=False, prompt=8 + number, layers=1, heads=1)
        named += [
            (f"plain-{number}", trace),
            (f"masked-{number}", replace(trace, interventions=[{"name": "MaskSinks"}])),
        ]
    named.append(("other", made_trace("made-dream", maps=False, layers=1, heads=1)))
    kept = [name for name, _ in choose(named)]
    assert kept == ["plain-0", "plain-1", "plain-2", "plain-3", "masked-0", "masked-1", "other"]


def test_lines_show_what_a_query_looks_at(look: Opener, report: Path, traces: list[Trace]) -> None:
    page = look(report, "tab=explorer&sample=0&layer=0&head=0&step=5")
    assert "largest key" in (page.locator("#attention .links svg").get_attribute("aria-label") or "")
    page.locator("#strip .chip").nth(3).hover()
    page.wait_for_selector("#attention .links svg[aria-label*='query 3']")
    maps = traces[0].maps
    assert maps is not None
    top = int(maps[0, 5, 3].argmax())
    assert f"({top})" in page.locator("#attention .links svg").inner_html()
    assert page.locator("#attention canvas").count() == 2


def test_the_unit_stays_when_the_model_changes(look: Opener, report: Path) -> None:
    page = look(report, "tab=explorer&sample=0&unit=percent")
    page.locator("#model").select_option("made-llama")
    until(page, "sinkscope.sample.model === 'made-llama'")
    assert page.evaluate("sinkscope.view.unit") == "percent"
    assert page.get_by_role("radio", name="percent").is_checked()


def test_an_edit_of_a_committed_token_is_shown(look: Opener, tmp_path: Path) -> None:
    trace = made_trace(maps=False)
    canvas = trace.canvas.clone()
    key, step = trace.prompt_length + 1, 8
    was = int(canvas[step, key])
    canvas[step:, key] = was % len(WORDS) + 1
    page = look(write_traces([replace(trace, canvas=canvas)], tmp_path / "edit.html"), f"step={step}")
    edited = page.locator("#strip .chip.edited")
    assert edited.evaluate_all("chips => chips.map(chip => Number(chip.dataset.key))") == [key]
    edited.hover()
    assert f"was {WORDS[was - 1]}" in page.locator("#tip").inner_text()
    page.keyboard.press("ArrowRight")
    until(page, f"sinkscope.view.step === {step + 1} && !sinkscope.queued")
    page.wait_for_timeout(100)
    assert page.locator("#strip .chip.edited").count() == 0


def test_blocks_have_borders_and_a_legend(look: Opener, tmp_path: Path) -> None:
    page = look(write_traces([made_trace(maps=False)], tmp_path / "blocks.html"), "")
    assert page.locator("#map .key-block").count() == 1
    whole = look(write_traces([made_trace(maps=False, block=16)], tmp_path / "whole.html"), "")
    assert whole.locator("#map .key-block").count() == 0
    assert page.locator("#grid .ramp").count() == 1 and page.locator("#map .ramp").count() == 1
