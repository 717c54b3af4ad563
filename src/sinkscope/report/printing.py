"""`figures`: all figures of a run, or of one trace, as files for print."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import ReportError
from sinkscope.io.reading import damaged
from sinkscope.report import figures as made
from sinkscope.report.drawing import STYLE
from sinkscope.report.sample import first_head, model_of
from sinkscope.report.writing import traces_of
from sinkscope.study.results import read_results
from sinkscope.tracing import Trace

FORMATS = ("pdf", "svg", "png")
Keep = Callable[[str, Axes | Figure], None]


def figures(run: Path | str, out: Path | str | None = None, format: str = "pdf", dpi: int = 200) -> list[Path]:
    """Write every figure that a run, or the file of one trace, has data for; each model's first trace stands for it.

    A trace can also become one picture: `out` then names a file that ends in .png, .svg or .pdf.
    """
    if format not in FORMATS:
        raise ReportError(f"Expected the format {', '.join(FORMATS)}, got {format!r}.")
    run = Path(run)
    if run.is_file() and out is not None and Path(out).suffix[1:] in FORMATS:
        return [picture(Trace.load(run), out, dpi)]
    beside = run.with_name(f"{run.name}.figures") if run.is_file() else run / "figures"
    folder = Path(out) if out is not None else beside
    traces = [trace for _, trace in traces_of(run)]
    results = None if run.is_file() else read_results(run, ReportError)
    if not traces and not (results and results.cells):
        raise ReportError(f"Expected a run with results.json or traces/*.safetensors, and {run} has neither.")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def keep(name: str, drawn: Axes | Figure) -> None:
        path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.{format}"
        written.append(_save(drawn, path, dpi))

    _of_traces(keep, traces)
    if results is not None:
        with damaged(f"results.json of {run}", ReportError):
            if cells := [*results.pooled, *results.cells]:
                keep("masking", made.masking_curves(cells))
            if tokens := [row for row in results.tokens if row.condition == "none"]:
                keep("table-2", made.token_bars(tokens))
            if results.dynamics:
                keep("classes", made.class_bars(results.dynamics))
            if results.mechanism:
                keep("mechanism", made.mechanism_gaps(results.mechanism))
    return written


def picture(trace: Trace, out: Path | str, dpi: int = 200) -> Path:
    """One picture of a trace, as PNG, SVG or PDF by the file's ending: its `first_head`, or the mean of all."""
    path = Path(out)
    if path.suffix[1:] not in FORMATS:
        raise ReportError(f"Expected a file that ends in .{', .'.join(FORMATS)}, got {path.name!r}.")
    first = first_head([trace])
    place = (None, None) if first is None else (first["layer"], first["head"])
    path.parent.mkdir(parents=True, exist_ok=True)
    return _save(made.received_map(trace, *place), path, dpi)


def _save(drawn: Axes | Figure, path: Path, dpi: int) -> Path:
    figure = drawn if isinstance(drawn, Figure) else drawn.get_figure(root=True)
    assert figure is not None
    dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[path.suffix[1:]]
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure.savefig(path, dpi=dpi, metadata=dated)
    return path


def _of_traces(keep: Keep, traces: list[Trace]) -> None:
    firsts: dict[str, Trace] = {}
    for trace in [*(one for one in traces if not one.interventions), *traces]:  # as the models are, before changed ones
        firsts.setdefault(model_of(trace), trace)
    for model, trace in firsts.items():
        keep(f"figure-1-{model}", made.received_map(trace))
        keep(f"figure-3-{model}", made.score_histogram(trace, "uniform" if trace.causal else "sum"))
        kept = next((one for one in traces if model_of(one) == model and one.maps is not None and one.steps > 1), None)
        if kept is not None:
            slot, step = _change(kept)
            keep(f"figure-4-{model}", made.neighbouring_maps(kept, step, slot))
        keep(f"figure-5-{model}", made.head_grid(trace))
    if firsts:
        keep("figure-7", made.sink_paths(list(firsts.values())))
        keep("figure-10", made.epsilon_curve(list(firsts.values())))
    first = first_head(traces)
    if first is not None:
        name = "moving-sink" if first["moves"] else "standing-sink"
        keep(name, made.received_map(traces[first["sample"]], first["layer"], first["head"]))
    twins = {place: twin for place, trace in enumerate(traces) if (twin := _twin(trace, traces)) is not None}
    paired = first_head([trace for place, trace in enumerate(traces) if place in twins])
    if paired is not None:
        place = list(twins)[paired["sample"]]
        keep("before-after", made.before_after(traces[place], twins[place], paired["layer"], paired["head"]))


def _twin(trace: Trace, traces: list[Trace]) -> Trace | None:
    """The same problem of the same model with an intervention."""
    if trace.interventions:
        return None
    changed = (one for one in traces if one.interventions and one.prompt == trace.prompt)
    return next((one for one in changed if model_of(one) == model_of(trace)), None)


def _change(trace: Trace) -> tuple[int, int]:
    """Slot and step at which the largest key of a kept map moves, and the map differs most from the one before."""
    assert trace.maps is not None
    if trace.causal:  # the map grows by a row per step, so the last two say most
        return 0, trace.steps - 1
    columns = trace.maps.float().sum(2)  # [slot, step, key]
    change = (columns[:, 1:] - columns[:, :-1]).abs().amax(-1)
    moved = columns[:, 1:].argmax(-1) != columns[:, :-1].argmax(-1)
    change = change + 1e6 * moved
    slot, step = divmod(int(change.argmax()), change.shape[1])
    return slot, step + 1
