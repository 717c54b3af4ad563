"""Text of models is data: whatever it says, it is shown and nothing runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import Opener, made_results, made_token, made_trace
from playwright.sync_api import Browser

from sinkscope.report import write, write_traces
from sinkscope.report.page import data_block

HOSTILE = [
    "</script><img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "\"'><svg onload=document.title='owned'>",
    "{{script}}",
    "<!--",
    "\u202eevil\u202c",
    "\ud800",
    "a\u0000b",
    "\u2028\u2029",
    "javascript:document.title='owned'",
    "x" * 10_000,
    "=1+1",
    "",
    "ﷺ𝕏🏳️‍🌈",
]


@pytest.mark.parametrize("width", [360, 1280])
def test_hostile_tokens_are_shown_as_text(look: Opener, tmp_path: Path, width: int) -> None:
    trace = made_trace(HOSTILE[0], words=HOSTILE, prompt=14, maps=False)
    page = look(write_traces([trace], tmp_path / "hostile.html"), "step=15", width=width)
    assert page.title() == "sinkscope"
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    chips = page.locator(".chip").all_inner_texts()
    assert chips[0].startswith("</script><img src=x")
    assert chips[3] == "{{script}}"
    assert "⟨202e⟩" in chips[5] and "⟨d800⟩" in chips[6] and "⟨0000⟩" in chips[7]
    assert len(chips[10]) < 30
    page.locator(".chip").nth(10).hover()
    assert page.locator("#tip").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_results_are_shown_as_text(look: Opener, tmp_path: Path) -> None:
    results = made_results()
    for cell in results["cells"]:
        cell["model"], cell["task"] = HOSTILE[0], HOSTILE[1]
    results["run"]["models"] = [{"name": HOSTILE[0], "family": HOSTILE[1]}]
    results["tokens"] = [made_token(HOSTILE[0], text, "word", 0.1, 0.1).to_dict() for text in HOSTILE]
    results["verdicts"] = [{"model": text, "name": text, "value": text, "because": text} for text in HOSTILE]
    run = tmp_path / "<b>run"
    run.mkdir()
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    page = look(write(run), "")
    assert page.title() == "<b>run · sinkscope"
    assert page.locator("img").count() == 0 and page.locator("b").count() == 0
    assert "</script><img" in page.locator("main#overview").inner_text()


def test_the_policy_stops_a_script_that_broke_out(browser: Browser, report: Path, tmp_path: Path) -> None:
    """Even with a hole in the escaping, only the page's own script may run."""
    broken = tmp_path / "broken.html"
    text = report.read_text(encoding="utf-8").replace("<noscript>", "<script>document.title='owned'</script><noscript>")
    broken.write_text(text, encoding="utf-8")
    page = browser.new_page()
    page.goto(broken.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.title() != "owned"
    page.close()


def test_data_blocks_cannot_end() -> None:
    block = data_block({"texts": HOSTILE})
    assert not set("<>&") & set(block) and block.isascii()
    assert json.loads(block)["texts"] == HOSTILE
    assert json.loads(data_block({"p": [float("nan"), 1.5, {"low": float("inf")}]})) == {
        "p": [None, 1.5, {"low": None}]
    }
