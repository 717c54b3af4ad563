"""The overview: what a study found, in sentences, charts and tables; and runs that lack a part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import Opener, made_results, made_trace

from sinkscope.errors import ReportError
from sinkscope.report import write, write_traces
from sinkscope.report.overview import family_of, findings, paper_values
from sinkscope.report.writing import pack


def test_charts_and_tables_show_the_results(look: Opener, report: Path) -> None:
    page = look(report, "tab=overview")
    results = made_results()
    assert page.locator("#table1 tbody tr").count() == len(results["cells"])
    text = page.locator("#findings").inner_text()
    assert "Sinks of 83 % of the heads move." in text
    assert "Right on 85.0 % of 400 problems; 84.0 % without its largest sink (84.5 %" in text
    assert page.locator("#masking figure").count() == 3
    label = page.locator("#masking svg").first.get_attribute("aria-label") or ""
    assert "sinks masked (K = 1, clean) −1.0 points" in label
    assert "paper, GSM8K" in page.locator("#masking svg").first.inner_html()
    assert "×7.4" in page.locator("#tokens svg").first.inner_html()
    assert page.locator("#curves svg").count() == 2
    page.locator("#task").select_option("recall")
    assert "recall" in (page.locator("#masking svg").first.get_attribute("aria-label") or "")


def test_a_run_without_traces_is_an_overview(look: Opener, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(made_results()), encoding="utf-8")
    page = look(write(tmp_path), "tab=explorer")
    assert page.locator("#overview").is_visible() and not page.locator("nav button").count()


def test_a_run_without_results_is_an_explorer(look: Opener, tmp_path: Path) -> None:
    page = look(write_traces([made_trace(maps=False)], tmp_path / "page.html"), "")
    assert page.locator("#explorer").is_visible() and page.locator(".chip").count() == 28


def test_findings_stand_by_model_and_masking_is_pooled() -> None:
    results = made_results()
    lines = findings(results["verdicts"], results["cells"])
    assert [line["model"] for line in lines] == ["made-llada"] * 2 + ["made-llama"] * 2 + ["made-dream"]
    assert lines[1]["verdict"] == "sinks: moving" and lines[3]["verdict"] == "arm like: yes"


def test_the_papers_values_are_known_by_family() -> None:
    assert paper_values(family_of("tiny-llada"))["gsm8k"][10] == 0.55
    assert paper_values(family_of("tiny-mmada"))["humaneval"][1] == 0.16
    assert paper_values(family_of("something else")) == {}


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_broken_results_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text, encoding="utf-8")
    with pytest.raises(ReportError, match=r"results\.json"):
        write(tmp_path)


def test_nothing_to_show_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="neither"):
        write(tmp_path)
    with pytest.raises(ReportError, match="folder of a run"):
        write(tmp_path / "nowhere")
    with pytest.raises(ReportError, match="at least one trace"):
        write_traces([], tmp_path / "x.html")


def test_a_page_keeps_to_its_limit(tmp_path: Path) -> None:
    traces = [made_trace(f"made-{i % 2}", seed=i, maps=False) for i in range(4)]
    sizes = [
        write_traces(traces, tmp_path / f"{limit}.html", limit).stat().st_size for limit in (400_000, 200_000, 130_000)
    ]
    assert sizes[0] <= 400_000 and sizes[1] <= 200_000 and sizes[2] <= 130_000
    named = [(str(i), trace) for i, trace in enumerate(traces)]
    assert {head["detail"] for head, _ in pack(named, 10**9)} == {"full"}
    some = pack(named, 60_000)
    assert {head["detail"] for head, _ in some} == {"compact"} and {head["model"] for head, _ in some} == {
        "made-0",
        "made-1",
    }
