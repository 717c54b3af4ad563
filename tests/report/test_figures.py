"""Figures for print, the notebook's frame, and the commands."""

from __future__ import annotations

import json
import time
from pathlib import Path

import nbformat
import numpy as np
import pytest
from made_runs import made_results, made_trace
from nbclient import NotebookClient
from playwright.sync_api import Browser

from sinkscope.cli.app import run as command
from sinkscope.errors import ReportError
from sinkscope.report import figures
from sinkscope.report.notebook import show
from sinkscope.report.printing import figures as draw
from sinkscope.tracing import Trace

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_every_figure_is_written(run: Path, tmp_path: Path) -> None:
    first = draw(run, tmp_path / "one", "svg")
    names = {path.stem for path in first}
    assert {"figure-1-made-llada", "figure-3-made-llama", "figure-4-made-llada", "figure-5-made-dream"} <= names
    assert {"figure-7", "figure-10", "masking"} <= names
    assert "largest key" in (tmp_path / "one" / "figure-7.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(("format", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_formats(tmp_path: Path, format: str, start: bytes) -> None:
    (tmp_path / "results.json").write_text(json.dumps(made_results()), encoding="utf-8")
    (path,) = draw(tmp_path, format=format)
    before = path.read_bytes()
    assert before.startswith(start)
    assert draw(tmp_path, format=format) == [path] and path.read_bytes() == before
    with pytest.raises(ReportError, match="format"):
        draw(tmp_path, format="jpeg")


def test_figures_show_the_numbers_of_the_trace(traces: list[Trace]) -> None:
    trace = traces[0]
    scores = trace.scores()
    ax = figures.received_map(trace, layer=1, head=2)
    assert np.allclose(np.asarray(ax.images[0].get_array()) ** 2, scores[:, 1, 2].numpy(), atol=1e-4)
    assert ax.lines[0].get_xdata().tolist() == scores[:, 1, 2].argmax(-1).tolist()
    grid = np.asarray(figures.head_grid(trace).images[0].get_array())
    assert np.allclose(grid, scores.amax(-1).mean(0).numpy(), atol=1e-5)
    curve = figures.epsilon_curve([trace]).lines[0].get_ydata()
    assert (np.diff(curve) >= 0).all() and curve[-1] <= 100
    drops = figures.masking_curves(made_results()["cells"], "recall").axes[0].containers[0].lines[0].get_ydata()
    assert np.allclose(drops, [0, -1, -(5**0.5), -(10**0.5)])
    with pytest.raises(ReportError, match="kept none"):
        figures.neighbouring_maps(traces[2])
    with pytest.raises(ReportError, match="from 1 to"):
        figures.neighbouring_maps(trace, 0)


def test_the_frame_of_a_notebook_is_closed_and_works(browser: Browser, tmp_path: Path) -> None:
    shown = show(made_trace(maps=False))
    html = shown._repr_html_()
    assert 'sandbox="allow-scripts allow-downloads"' in html and "allow-same-origin" not in html
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8>{html}", encoding="utf-8")
    page = browser.new_page(offline=True)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("html[data-settled]")
    frame.locator("#step").press("ArrowRight")
    frame.wait_for_selector("#where:has-text('Step 2 of 16')")
    assert errors == [] and "1 trace" in repr(shown)
    page.close()


def test_the_example_notebook_runs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    text = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert "<iframe sandbox" in text and "image/png" in text


def test_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(run), "-o", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == (tmp_path / "page.html").stat().st_size
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "results.json").write_text(json.dumps(made_results()), encoding="utf-8")
    assert command(["figures", str(tmp_path / "small"), "--format", "svg", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == [str(tmp_path / "small" / "figures" / "masking.svg")]
    assert command(["report", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("sinkscope: Expected the folder of a run")
    assert command(["figures", str(run), "--format", "gif"]) == 2
    assert command(["view", str(tmp_path / "nowhere"), "--no-browser"]) == 2


def test_view_ends_with_an_interrupt(run: Path) -> None:
    import signal
    import subprocess
    import sys

    # A shell's background jobs ignore the interrupt, and so would their children: it is switched on again.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from sinkscope.cli.app import run; sys.exit(run(sys.argv[1:]))"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code, "view", str(run), "--no-browser"], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdout.readline().startswith("http://127.0.0.1:")
    time.sleep(0.2)
    started.send_signal(signal.SIGINT)
    assert started.wait(60) == 0
