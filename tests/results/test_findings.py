"""The three findings of a run: one function says them, and terminal and page repeat it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.rejudge import ROOT
from sinkscope.report.overview import overview_of
from sinkscope.results.findings import list_findings, select_pair, write_summary
from sinkscope.results.rows import Results, need_results
from sinkscope.study.store import as_json


@pytest.fixture
def results() -> Results:
    return need_results(ROOT / "results" / "pair" / "pair")


def test_findings_are_of_an_autoregressive_and_a_diffusion_model(results: Results) -> None:
    assert [of.model for of in select_pair(results)] == ["smol-llama", "smol-dream"]
    assert [one.name for one in list_findings(results)] == ["sinks", "movement", "masking"]
    for one in list_findings(results):
        assert all(model in one.sentence for model in ("smol-llama", "smol-dream")) and one.sentence.endswith(".")


def test_a_changed_figure_changes_terminal_and_page(results: Results, tmp_path: Path) -> None:
    masked = next(
        cell for cell in results.cells
        if cell.model == "smol-llama" and cell.task == "arithmetic" and "above" in cell.condition
    )  # fmt: skip
    changed = replace(results, cells=[
        replace(cell, correct=cell.correct - 7, difference=cell.difference - 0.07) if cell is masked else cell
        for cell in results.cells
    ])  # fmt: skip
    sentences = []
    for number, one in enumerate((results, changed)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "results.json").write_text(as_json(one.to_dict()), encoding="utf-8")
        (sentence,) = (finding.sentence for finding in list_findings(one) if finding.name == "masking")
        count = masked.correct - 7 * number
        assert f"to {count} of {masked.n}" in sentence
        assert f"to {count} of {masked.n}" in " ".join(write_summary(one).split())
        page = json.dumps(overview_of(folder)["findings"], ensure_ascii=False)
        assert sentence in page
        sentences.append(sentence)
    assert sentences[0] != sentences[1]


def test_findings_need_no_second_model(results: Results) -> None:
    alone = results.where(lambda row: row.model == "smol-dream")
    found = list_findings(replace(results, **vars(alone)))
    assert found and not any("smol-llama" in one.sentence for one in found)


def test_bars_have_dose_and_interval(results: Results) -> None:
    bars = list_findings(results)[-1].bars
    assert {bar.model for bar in bars} == {"smol-llama", "smol-dream"}
    assert all(bar.low <= bar.accuracy <= bar.high for bar in bars)
    assert all(bar.dose is not None for bar in bars if bar.condition != "nothing masked")
