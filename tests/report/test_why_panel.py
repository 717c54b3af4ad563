"""The panel "why a key is a sink" in a real browser: what the trace holds of the head in view, or how to get it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import Opener, made_trace, until

import sinkscope as sk
from sinkscope.report import write
from sinkscope.report.view import Viewer
from sinkscope.tracing import Trace

SETTINGS = sk.Decode.llada(length=16, block=16, steps=8)
PROMPT = "Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace, sk.Model]:
    """A run with a real trace that keeps the head with the strongest sink, and one that keeps nothing."""
    folder, model = tmp_path_factory.mktemp("why") / "run", sk.load("tiny-llada")
    plain: Any = sk.trace(model, PROMPT, SETTINGS)
    best = plain.sinks().sort("score", descending=True).row(0, named=True)
    trace: Any = sk.trace(model, PROMPT, SETTINGS, keep=sk.Keep(maps=((best["layer"], best["head"]),)))
    trace.save(folder / "traces" / "0-tiny-llada.safetensors")
    made_trace("made-dream", seed=2, maps=False).save(folder / "traces" / "1-made-dream.safetensors")
    write(folder)
    return folder, trace, model


def table(page: Any) -> dict[str, list[float]]:
    rows = page.locator("#why tbody tr")
    found = {}
    for row in range(rows.count()):
        cells = rows.nth(row).locator("td").all_inner_texts()
        name = rows.nth(row).locator("th").inner_text()
        found[name] = [float(cell.replace("−", "-").strip("±× ")) for cell in cells]
    return found


def test_the_numbers_are_those_of_python(look: Opener, made: tuple[Path, Trace, sk.Model]) -> None:
    folder, trace, model = made
    ((layer, head),) = trace.map_heads
    page = look(folder / "report.html", f"tab=explorer&sample=0&layer={layer}&head={head}&step=4")
    until(page, "document.querySelectorAll('#why tbody tr').length === 6")
    key = int(trace.scores()[4, layer, head].argmax())
    why = trace.why(4, layer, head, key, model=model)
    assert f"at {key}, {why.state}" in page.locator("#why").inner_text()
    assert f"{len(why.matched)} matched keys" in page.locator("#why").inner_text()
    found = table(page)
    assert found["score"] == pytest.approx([why.score, why.matched_score, why.score - why.matched_score], abs=0.06)
    assert found["by norm"][2] == pytest.approx(why.by_norm, abs=0.01)
    assert found["by angle"][2] == pytest.approx(why.by_angle, abs=0.01)
    assert found["by content"][2] == pytest.approx(why.content - why.matched_content, abs=0.01)
    assert found["value norm"][2] == pytest.approx(why.value_norm / why.matched_value_norm, abs=0.01)
    page.locator(".chip").nth(3).hover()
    until(page, "document.querySelector('#why').innerText.includes('at 3, prompt')")
    other = trace.why(4, layer, head, 3, model=model)
    assert table(page)["score"][0] == pytest.approx(other.score, abs=0.06)


def test_numbers_can_be_downloaded(look: Opener, made: tuple[Path, Trace, sk.Model], tmp_path: Path) -> None:
    folder, trace, _ = made
    ((layer, head),) = trace.map_heads
    page = look(folder / "report.html", f"tab=explorer&sample=0&layer={layer}&head={head}&step=2")
    with page.expect_download() as got:
        page.locator("#why .tool", has_text="CSV").click()
    got.value.save_as(tmp_path / "why.csv")
    rows = list(csv.DictReader((tmp_path / "why.csv").open(encoding="utf-8")))
    assert trace.reasons is not None and len(rows) == trace.positions
    columns = torch.tensor([[float(row[name]) for name in ("score", "key norm", "value norm")] for row in rows])
    assert torch.allclose(columns.mT, trace.reasons[0, 2, [0, 1, 3]], rtol=1e-4, atol=1e-4)


def test_a_head_that_is_not_kept_says_how_to_get_it(look: Opener, made: tuple[Path, Trace, sk.Model]) -> None:
    folder, trace, _ = made
    ((layer, head),) = trace.map_heads
    page = look(folder / "report.html", "tab=explorer&sample=0&layer=-1")
    assert page.locator("#why tbody tr").count() == 0 and "sk.Keep(maps=((0, 0),))" in page.locator("#why").inner_text()
    page.locator("#why button", has_text=f"layer {layer}, head {head}").click()
    until(page, "document.querySelectorAll('#why tbody tr').length === 6")
    page = look(folder / "report.html", "tab=explorer&sample=1&layer=2&head=1&step=5")
    text = page.locator("#why").inner_text()
    assert "does not hold it" in text and "maps=((2, 1),)" in text and "trace.why(5, 2, 1, " in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(look: Opener, made: tuple[Path, Trace, sk.Model], scheme: str) -> None:
    folder, trace, _ = made
    ((layer, head),) = trace.map_heads
    view = f"tab=explorer&sample=0&layer={layer}&head={head}"
    page = look(folder / "report.html", view, width=360, scheme=scheme)
    assert page.locator("#why").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_server_gives_the_same(made: tuple[Path, Trace, sk.Model]) -> None:
    folder, trace, _ = made
    assert trace.reasons is not None
    with Viewer(folder) as viewer:
        got = viewer.recording.slice("0", "reasons", {"slot": "0", "step": "3"})
        assert got == trace.reasons[0, 3].numpy().tobytes()
        with pytest.raises(sk.errors.ReportError, match="no reasons"):
            viewer.recording.slice("1", "reasons", {"slot": "0", "step": "3"})


def test_positions_that_could_not_be_taken_off_leave_their_rows_out(look: Opener, tmp_path: Path) -> None:
    trace = made_trace()
    held = torch.rand(2, trace.steps, 4, trace.positions)
    held[:, :, 2] = torch.nan
    replace(trace, reasons=held).save(tmp_path / "run" / "traces" / "0.safetensors")
    page = look(write(tmp_path / "run"), "tab=explorer&sample=0&layer=0&head=1&step=5")
    until(page, "document.querySelectorAll('#why tbody tr').length === 4")
