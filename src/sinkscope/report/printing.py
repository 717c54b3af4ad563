"""`figures`: all figures of a run as files, for print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import ReportError
from sinkscope.report import figures as made
from sinkscope.report.overview import read
from sinkscope.report.writing import trace_files
from sinkscope.tracing import Trace

FORMATS = ("pdf", "svg", "png")
# Text stays text in a PDF and an SVG, and no date or chance gets into the files: the same run gives the same bytes.
STYLE: Any = {
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "sinkscope",
    "font.size": 9,
    "text.parse_math": False,
}


def figures(run: Path | str, out: Path | str | None = None, format: str = "pdf", dpi: int = 200) -> list[Path]:
    """Write every figure that the run has data for; the first trace of each model stands for it."""
    if format not in FORMATS:
        raise ReportError(f"Expected the format {', '.join(FORMATS)}, got {format!r}.")
    run = Path(run)
    folder = Path(out) if out is not None else run / "figures"
    firsts = _first_traces(run)
    results = read(run / "results.json")
    cells = [*results.get("pooled", []), *results.get("cells", [])]
    if not firsts and not cells:
        raise ReportError(f"Expected a run with results.json or traces/*.safetensors, and {run} has neither.")
    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def keep(name: str, drawn: Axes | Figure) -> None:
        figure = drawn if isinstance(drawn, Figure) else drawn.get_figure(root=True)
        assert figure is not None
        path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.{format}"
        dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[format]
        figure.savefig(path, dpi=dpi, metadata=dated)
        written.append(path)

    with rc_context(STYLE):
        for model, trace in firsts.items():
            keep(f"figure-1-{model}", made.received_map(trace))
            keep(f"figure-3-{model}", made.score_histogram(trace, "uniform" if trace.causal else "sum"))
            if trace.maps is not None and trace.steps > 1:
                keep(f"figure-4-{model}", made.neighbouring_maps(trace, _liveliest(trace)))
            keep(f"figure-5-{model}", made.head_grid(trace))
        if firsts:
            keep("figure-7", made.sink_paths(list(firsts.values())))
            keep("figure-10", made.epsilon_curve(list(firsts.values())))
        if any(cell.get("difference") is not None for cell in cells):
            keep("masking", made.masking_curves([cell for cell in cells if cell.get("difference") is not None]))
    return written


def _first_traces(run: Path) -> dict[str, Trace]:
    found: dict[str, Trace] = {}
    for path in trace_files(run):
        trace = Trace.load(path)
        if not trace.interventions:
            found.setdefault(str(trace.model.get("name", "model")), trace)
    return found


def _liveliest(trace: Trace) -> int:
    """The step at which the first kept map differs most from the one before: that is where a sink moves."""
    assert trace.maps is not None
    columns = trace.maps[0].float().sum(1)  # [step, key]
    return 1 + int((columns[1:] - columns[:-1]).abs().amax(-1).argmax())
