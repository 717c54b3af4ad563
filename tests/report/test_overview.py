"""The overview: what a study found, in sentences, charts and tables; and runs that lack a part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import Opener, made_results, made_token, made_trace, typed, until

from sinkscope import paper
from sinkscope.errors import ReportError
from sinkscope.report import write, write_traces
from sinkscope.report.overview import overview, paper_values
from sinkscope.report.page import build
from sinkscope.report.writing import pack
from sinkscope.results import text as words
from sinkscope.results.series import role_of as role
from sinkscope.study.run import Run

DOCS = Path(__file__).parents[2] / "docs"


def test_charts_and_tables_show_the_results(look: Opener, report: Path) -> None:
    page = look(report, "tab=overview")
    results = made_results()
    assert page.locator("#cells tbody tr").count() == len(results["cells"])
    assert page.locator("#masking figure").count() == 3
    label = page.locator("#masking svg[role=img]").first.get_attribute("aria-label") or ""
    assert "mask sinks K=1 clean by all rows −1.0 points" in label
    legend = page.locator("#masking .shared").inner_text()
    assert "sinks masked" in legend and "random keys, count-matched" in legend and "paper, GSM8K" in legend
    assert page.locator("#masking .shared").count() == 1
    assert "37.0 %" in page.locator("#tokens figure svg").first.inner_html()
    assert page.locator("#curves figure").count() == 2
    assert "ε = 3" in page.locator("#curves figure svg").first.inner_html()
    assert "96 %" in page.locator("#curves figure svg").first.inner_html()
    page.locator("#task").select_option("recall")
    assert "recall" in (page.locator("#masking svg[role=img]").first.get_attribute("aria-label") or "")


def test_claims_come_first_as_one_matrix(look: Opener, report: Path) -> None:
    page = look(report, "")
    table = page.locator("#claims .matrix")
    heads = table.locator("thead tr").nth(0).locator("th").all_inner_texts()
    assert heads == ["made-llada", "made-dream", "made-llama"]
    assert table.locator("thead tr").nth(1).locator("td").all_inner_texts() == ["LLaDA-8B", "Dream-7B", "Llama-3.1-8B"]
    cells = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()
    }
    assert cells == {
        "has sinks": ["", "", "·"],
        "works w/o main keys": ["+", "−", ""],
        "needs its sink": ["", "", "?"],
    }


def test_a_cell_opens_its_figure_control_and_reason(look: Opener, report: Path) -> None:
    page = look(report, "")
    shown = page.locator("#claims .claim-detail")
    assert shown.count() == 0
    mark = page.get_by_role("button", name="made-llada, works w/o main keys: supports")
    mark.click()
    text = shown.inner_text()
    for part in ("made-llada", "−2.0 [−5.0, +0.5] points, n = 400, 30 % of the attention removed", "mask random K=1, −0.5 [",
                 "Right answers may fall by at most 5 points.", "undecided", "mask sinks K=1 as run"):  # fmt: skip
        assert part in text
    page.get_by_role("button", name="made-llama, has sinks: no test").click()
    assert "made-llama" in shown.inner_text() and "Control" not in shown.inner_text()
    assert mark.get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_marks_are_squares_and_the_matrix_scrolls_inside_its_panel(
    look: Opener, report: Path, width: int, height: int, scheme: str
) -> None:
    page = look(report, "", width=width, height=height, scheme=scheme)
    for mark in page.locator("#claims .matrix .badge").all():
        box = mark.bounding_box()
        assert box is not None and box["width"] == box["height"] and 24 <= box["width"] <= 32
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colours = page.locator("#claims .matrix .badge").evaluate_all(
        "marks => marks.map((m) => getComputedStyle(m).color)"
    )
    assert len({*colours}) == 4


def test_models_scored_on_the_same_answers_stand_side_by_side(look: Opener, report: Path) -> None:
    page = look(report, "")
    label = page.locator("#pair svg[role=img]").first.get_attribute("aria-label") or ""
    assert "made-dream: top key −0.20 [−0.30, −0.15]" in label and "made-llama: content key" in label
    assert page.locator("#pair .shared li").all_inner_texts() == ["made-llama (ARM)", "made-dream (DLM)"]
    assert "40 %" in page.locator("#pair svg[role=img]").first.inner_html()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_says_the_findings(look: Opener, report: Path, width: int, height: int) -> None:
    page = look(report, "", width=width, height=height)
    shown = page.evaluate("sinkscope.data.overview.findings.map((one) => one.sentence)")
    assert shown and shown == [one["sentence"] for one in page.evaluate("sinkscope.data.overview.findings")]
    first = page.locator(".cards .panel").first
    box = first.bounding_box()
    assert box is not None and box["y"] < height / 2
    for sentence in shown:
        assert page.locator(".cards .about", has_text=sentence[:60]).count() == 1
    until(page, "document.querySelector('#live').dataset.played === 'yes'")
    place = page.evaluate("sinkscope.data.highlights[0].sample")
    assert page.locator("#live").get_attribute("data-step") == str(
        page.evaluate(f"sinkscope.samples[{place}].steps") - 1
    )


def test_the_explorer_opens_on_a_head_of_the_first_picture(look: Opener, report: Path) -> None:
    page = look(report, "")
    chosen = page.evaluate("sinkscope.data.highlights[0]")
    page.locator("#live").get_by_role("button", name="Explore this head").click()
    until(page, "sinkscope.view.tab === 'explorer' && sinkscope.plane")
    assert page.evaluate("[sinkscope.view.sample, sinkscope.view.layer, sinkscope.view.head]") == [
        chosen["sample"], chosen["layer"], chosen["head"],
    ]  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_a_mark_opens_its_text_where_it_is_clicked(look: Opener, tmp_path: Path, width: int, height: int) -> None:
    (tmp_path / "results.json").write_bytes((DOCS.parent / "results" / "pair" / "pair" / "results.json").read_bytes())
    page = look(write(tmp_path), "", width=width, height=height)
    rows = Run.load(tmp_path).rows.claims
    cells = {key: row for key, row in words.cells_of(rows).items() if key[0] in words.SHORT}
    assert page.locator("#claims .matrix button").count() == len(cells)
    for (name, model), row in cells.items():  # the page says what the terminal says
        mark = page.get_by_role("button", name=f"{model}, {words.SHORT[name]}: {row.verdict}", exact=True)
        assert mark.inner_text() == words.MARKS[row.verdict]
        mark.click()
        text = page.locator("#claims .claim-detail")
        assert words.write_figure(row) in text.inner_text()
        box = text.bounding_box()
        assert box is not None and box["y"] >= -1 and box["y"] < height
        mark.click()
        assert text.count() == 0


def test_no_text_is_long_unless_asked_for(look: Opener, report: Path) -> None:
    page = look(report, "")
    counts = page.evaluate("""Array.from(document.querySelectorAll("main:not([hidden]) section")).map((section) => {
        const words = Array.from(section.querySelectorAll("p, li, figcaption, summary, h2, h3, strong"))
          .filter((e) => e.checkVisibility() && !e.closest(".strip")).map((e) => e.textContent).join(" ");
        return [section.id, words.split(/\\s+/).length];
    })""")
    shown = {"claims", "live", "pair", "masking", "tokens", "classes", "curves", "mechanism", "table1"}
    assert {name for name, _ in counts} >= shown
    assert [one for one in counts if one[1] > 150] == []


def test_table_one_can_be_taken_home(look: Opener, report: Path, tmp_path: Path) -> None:
    page = look(report, "")
    texts = {}
    for kind in ("CSV", "Markdown", "LaTeX"):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"Download table 1 as {kind}", exact=True).click()
        waiting.value.save_as(tmp_path / kind)
        texts[kind] = (tmp_path / kind).read_text(encoding="utf-8")
    assert texts["CSV"].splitlines()[:2] == [
        "Model,Task,Keys masked,none,K = 1,K = 5,K = 10",
        "made-llada,arithmetic,sinks masked,90.0,89.0,87.8,86.8",
    ]
    assert texts["Markdown"].splitlines()[1].startswith("| --- | ---: |")
    assert "made-llada & arithmetic & paper, GSM8K & 76.0 & 75.0 & 73.0 & 55.0 \\\\" in texts["LaTeX"]
    assert texts["LaTeX"].startswith("\\begin{tabular}{lrrrrrr}")


def test_a_run_without_traces_is_an_overview(look: Opener, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(made_results()), encoding="utf-8")
    page = look(write(tmp_path), "tab=explorer")
    assert page.locator("#overview").is_visible() and not page.locator("nav button").count()


def test_a_run_without_results_is_an_explorer(look: Opener, tmp_path: Path) -> None:
    page = look(write_traces([made_trace(maps=False)], tmp_path / "page.html"), "")
    assert page.locator("#explorer").is_visible() and page.locator(".chip").count() == 28


@pytest.mark.parametrize(
    ("condition", "rows", "expected"),
    [
        ({"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all"}, "all", "sinks"),
        ({"name": "mask_sinks", "k": 1, "rank": "as_run", "rows": "all"}, "all", "as_run"),
        ({"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all"}, "last", "other_rows"),
        ({"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "last"}, "last", "sinks"),
        ({"name": "mask_random", "k": 1, "rows": "all", "match": "mass"}, "all", "mass"),
        ({"name": "mask_random", "k": 1, "rows": "all"}, "all", "count"),
        ({"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all", "kinds": "structural"}, "all", None),
        ({"name": "mask_sinks", "k": 1, "rank": "clean", "rows": "all", "per": "head", "above": None}, "all", "sinks"),
        ({"name": "mask_positions", "positions": [0], "since": "second"}, "last", "position"),
        ({"name": "none", "k": 0, "rank": None, "rows": None}, "all", None),
    ],
)
def test_roles_of_conditions(condition: dict[str, Any], rows: str, expected: str | None) -> None:
    assert role(condition, rows) == expected


def test_the_papers_values_stand_beside_models_that_stand_for_its_own() -> None:
    """A family is not enough: planted models are LLaDAs by their code, and SmolLM2 is no Llama-3.1."""
    assert paper_values("tiny-llada")["gsm8k"][10] == 0.55
    assert paper_values("tiny-mmada")["humaneval"][1] == 0.16
    assert paper_values("planted-none") == paper_values("smollm2-135m") == {}
    tokens = [made_token(model, ".", "punctuation", 0.5, 0.1) for model in ("made-llada", "planted-none")]
    results = made_results(tokens=tokens, cells=[])
    results["run"]["models"] = [{"name": token.model, "family": "llada"} for token in tokens]
    shown = overview(typed(results))
    assert shown["paperTokens"] == {"made-llada": paper.TABLE_2["llada"]}
    assert set(shown["paper"]) == {"made-llada"}


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
    data = {
        "title": "",
        "overview": overview(),
        "samples": [],
        "note": "",
        "highlights": [],
        "movement": [],
        "start": {},
    }
    least = len(build(data))  # what every page has: its script and its styles
    for room in (270_000, 90_000, 35_000):
        assert write_traces(traces, tmp_path / f"{room}.html", least + room).stat().st_size <= least + room
    named = [(str(i), trace) for i, trace in enumerate(traces)]
    assert {head["detail"] for head, _ in pack(named, 10**9)} == {"full"}
    some = pack(named, 60_000)
    assert {head["detail"] for head, _ in some} == {"compact"} and {head["model"] for head, _ in some} == {
        "made-0",
        "made-1",
    }
