"""The lens panel in a real browser: it shows what the trace holds, follows position and step, and is bounded."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_runs import WORDS, Opener, made_trace, until

from sinkscope.report import sample as sample_of_page
from sinkscope.report import write
from sinkscope.report.page import Blob
from sinkscope.report.sample import add_lens
from sinkscope.tracing import Trace


def with_lens(trace: Trace, seed: int = 0) -> Trace:
    draw = torch.Generator().manual_seed(seed)
    shape = (trace.steps, trace.layers, 3, trace.positions)
    tokens = torch.randint(1, len(WORDS) + 1, shape, generator=draw, dtype=torch.int32)
    sure = torch.rand(shape, generator=draw).sort(2, descending=True).values / 3
    sure[0, :, :, 4] = 0  # not computed
    return replace(trace, lens_tokens=tokens, lens_probability=sure.half())


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace]:
    folder = tmp_path_factory.mktemp("lens") / "run"
    trace = with_lens(made_trace("made-llada", steps=32, length=32, maps=False))
    trace.save(folder / "traces" / "0-made-llada.safetensors")
    made_trace("made-dream", seed=2, maps=False).save(folder / "traces" / "1-made-dream.safetensors")
    return write(folder), trace


def shown(trace: Trace, step: int, layer: int, place: int) -> str:
    assert trace.lens_tokens is not None
    return trace.vocabulary[int(trace.lens_tokens[step, layer, 0, place])][0]


def test_cells_are_the_top_tokens_of_layers_and_steps(look: Opener, page_file: tuple[Path, Trace]) -> None:
    path, trace = page_file
    page = look(path, "tab=explorer&sample=0")
    page.locator("#lens-position").select_option("15")
    rows = page.locator("#lens tbody tr")
    assert rows.count() == trace.layers and rows.first.locator("td").count() == 24  # a page of the 32 steps
    for row, layer in enumerate(reversed(range(trace.layers))):
        cells = rows.nth(row).locator("td").all_inner_texts()
        assert [cell.strip() for cell in cells] == [shown(trace, step, layer, 15)[:10] for step in range(24)]
    page.locator("#lens-position").select_option("4")
    assert page.locator("#lens tbody tr").first.locator("td").first.inner_text() == ""


def test_it_follows_the_step_and_the_pointer(look: Opener, page_file: tuple[Path, Trace]) -> None:
    path, trace = page_file
    page = look(path, "tab=explorer&sample=0&step=3")
    assert page.locator("#lens td.now").count() == trace.layers
    page.keyboard.press("End")
    until(page, "window.sinkscope.view.step === 31 && document.querySelectorAll('#lens thead th').length === 9")
    page.locator(".chip").nth(9).hover()
    until(page, "document.querySelector('#lens-position').value === '9'")
    last = page.locator("#lens tbody tr").first.locator("td.now")
    assert last.inner_text().strip() == shown(trace, 31, trace.layers - 1, 9)[:10]
    last.hover()
    until(page, "!document.querySelector('#tip').hidden")
    assert "%" in page.locator("#tip").inner_text() and "position 9" in page.locator("#tip").inner_text()


def test_a_sample_without_a_lens_has_no_panel(look: Opener, page_file: tuple[Path, Trace]) -> None:
    page = look(page_file[0], "tab=explorer&sample=1")
    assert page.locator("#lens").is_hidden()


def test_numbers_can_be_downloaded(look: Opener, page_file: tuple[Path, Trace], tmp_path: Path) -> None:
    path, trace = page_file
    page = look(path, "tab=explorer&sample=0")
    page.locator("#lens-position").select_option("15")
    with page.expect_download() as got:
        page.locator("#lens .tool", has_text="CSV").click()
    saved = tmp_path / "lens.csv"
    got.value.save_as(saved)
    rows = list(csv.DictReader(saved.open(encoding="utf-8")))
    assert len(rows) == trace.steps * trace.layers * 3
    assert trace.lens_probability is not None
    for row in rows[:60]:
        step, layer, choice = (int(row[name]) for name in ("step", "layer", "choice"))
        kept = float(trace.lens_probability[step, layer, choice, 15])
        assert abs(float(row["probability"]) - kept) < 1 / 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(look: Opener, page_file: tuple[Path, Trace], scheme: str) -> None:
    page = look(page_file[0], "tab=explorer&sample=0", width=360, scheme=scheme)
    assert page.locator("#lens").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_text_of_a_model_stays_text(look: Opener, tmp_path: Path) -> None:
    trace = with_lens(made_trace("made-llada", words=["<img src=x onerror=alert(1)>", "b", "\u202ec"], maps=False))
    assert trace.lens_tokens is not None
    trace = replace(trace, lens_tokens=(trace.lens_tokens % 3 + 1).int())
    trace.save(tmp_path / "run" / "traces" / "0.safetensors")
    page = look(write(tmp_path / "run"), "tab=explorer")
    assert page.locator("#lens img").count() == 0 and page.locator("#lens td").count() > 0


def test_its_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, blob = with_lens(made_trace(maps=False)), Blob()
    monkeypatch.setattr(sample_of_page, "LENS_BYTES", 1000)
    assert add_lens(trace, blob) is None and blob.index == {}
